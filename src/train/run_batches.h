#pragma once

#include <luna/data/batch.h>
#include <luna/data/translation.h>
#include <luna/train/train_config.h>

#include <optional>
#include <vector>

namespace luna::train {

/// How batches of translation are laid out.
enum class Layout {
  kPadded,     ///< to their longest sentence
  kFewShapes,  ///< padded to one of a few shapes, which can be recorded
  kPacked      ///< all in one shape
};

/// The batches of a run's steps, in the order that its seed says. A pure
/// function: a resumed run gets what it would have got.
class RunBatches {
 public:
  /// `data` must outlive it. `layout` is read for translation alone.
  RunBatches(const data::Dataset& data, const TrainConfig& config,
             const data::BatchOptions& form, Layout layout);

  /// Of step `step` (from 0): as many as it accumulates.
  std::vector<data::Batch> of_step(int64_t step);
  /// Steps, rounded up, that see the data once.
  int64_t steps_in_epoch() const;

 private:
  data::Batch translation(int64_t number);

  const data::Dataset& data_;
  const data::TranslationDataset* pairs_;  ///< the same, or none
  TrainConfig config_;
  data::BatchOptions form_;
  Layout layout_;
  std::optional<data::DataOrder> order_{};
  std::optional<data::TokenOrder> token_order_{};
  data::PackedShape packed_shape_{};
};

}  // namespace luna::train
