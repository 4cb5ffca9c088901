#pragma once

#include <luna/models/embedding.h>
#include <luna/models/encoder_layer.h>
#include <luna/models/model.h>

#include <vector>

namespace luna::models {

/// Embedding and a stack of layers; what is done with the result is for those
/// who derive from it, so that the names of the weights have no prefix.
///
/// Names: embedding.*, layers.N.*, norm.* (pre-norm: after the last layer);
/// with a mechanism that has a memory: memory [l,D] (P_0; of each layer,
/// [layers,l,D], where it is not contextual), memory_norm.* (with
/// embedding_norm) and, where a pre-norm model is pooled from the memory,
/// last_memory_norm.*
class Encoder : public Model {
 public:
  data::BatchOptions batch_options() const override;
  std::string refuses_packed() const override;

  /// Everything that was learnt of the sequences, x [B,n,D] and the memory.
  LayerState encode(const data::Sequences& sequences);
  /// What the config's `pooling` keeps of it, [B,D].
  at::Tensor pool(const data::Sequences& sequences);

  const ModelConfig& config() const { return config_; }

  Embedding embedding{nullptr};
  std::vector<EncoderLayer> layers{};
  torch::nn::LayerNorm norm{nullptr}, memory_norm{nullptr},
      last_memory_norm{nullptr};
  at::Tensor memory{};  ///< undefined where the mechanism has none

 protected:
  Encoder(const ModelConfig& config, const data::TaskInfo& task,
          int64_t longest)
      : Encoder(config, data::embedding_rows(task), longest,
                task.channels == 1 ? task.width : 0) {}
  /// `rows`: of the token embedding; `columns`: of grey pictures, else 0.
  Encoder(const ModelConfig& config, int64_t rows, int64_t longest,
          int64_t columns = 0);

  Masks make_masks(const data::Sequences& sequences) const;
  LayerState run(const data::Sequences& sequences, const Masks& masks,
                 Wanted wanted);

  /// Where a memory starts: the first rows of `parameter` [l,D], `masks` as
  /// the sequences have them.
  at::Tensor start_memory(const at::Tensor& parameter,
                          const data::Sequences& sequences, const Masks& masks);

 private:
  at::Tensor embedded(const data::Sequences& sequences, const Masks& masks);
  int64_t memory_rows(int64_t length) const;

  ModelConfig config_;
  bool dynamic_memory_ = false;
};

}  // namespace luna::models
