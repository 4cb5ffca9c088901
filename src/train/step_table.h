#pragma once

#include <luna/train/train_config.h>

#include <span>
#include <vector>

#include "luna/data/batch.h"
#include "train/device_data.h"

namespace luna::train {

/// What differs from one step to the next, of some steps at a time, on the
/// device: which samples, how pictures are moved and blended, the learning
/// rate. A row a step; a counter that lies there too says which row is next, so
/// that the same launches do step after step. All of it is computed by the
/// host, with the functions that a run on the CPU uses.
class StepTable {
 public:
  /// `rows` steps are there at a time.
  StepTable(const TrainConfig& config, const DeviceData& data,
            const c10::Device& device, int64_t rows = 256);

  /// Makes `step` the next one, and gives the tokens of its samples.
  int64_t turn_to(int64_t step);

  /// Of the step that was turned to, the tokens of each part's sequences; of
  /// pairs, of the first ones and of the second ones.
  std::span<const int64_t> part_tokens() const;

  /// Of the next step: the samples [batch] of part `part`, their moves where
  /// there is augmentation, the learning rate. Views made on the device.
  at::Tensor indices(int64_t part) const;
  std::optional<at::Tensor> moves(int64_t part) const;
  /// Undefined where none are blended.
  at::Tensor blends(int64_t part) const;
  at::Tensor lr() const;
  /// To the step after, on the device.
  void advance();

 private:
  void fill(int64_t first);

  TrainConfig config_;
  const DeviceData& data_;
  data::DataOrder order_;
  int64_t rows_;
  int64_t first_ = -1, next_ = -1;  ///< in the table; in the counter
  std::vector<int64_t> tokens_{};   ///< [rows, accumulate, sides]
  at::Tensor row_;                  ///< int64 [1]
  at::Tensor indices_;              ///< int64 [rows, accumulate, batch]
  at::Tensor moves_;                ///< int64 [rows, accumulate, batch, 3]
  at::Tensor blends_;               ///< float32 [rows, accumulate, batch, 6]
  at::Tensor rates_;                ///< float32 [rows]
};

}  // namespace luna::train
