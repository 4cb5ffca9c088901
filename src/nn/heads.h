#pragma once

#include <ATen/core/Tensor.h>
#include <luna/nn/attention_layer.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <string>
#include <vector>

// What the layers have in common: checks of their inputs, and the way between
// [B,n,D] and [B,H,n,d].

namespace luna::nn {

/// embed_dim and num_heads positive, the one a multiple of the other.
void check_shape(const std::string& layer, const LayerShape& shape);
/// x [B,n,D]; context [B,m,D]; key_mask [B,m]; query_mask [B,n]; memory
/// [B,l,D], [1,l,D] or [l,D]; memory_mask [B,l] (S in place of a packed B).
void check_input(const std::string& layer, int64_t embed_dim,
                 const at::Tensor& x, const LayerInput& input);
/// x [B,D]; as many state tensors as `least` at least.
void check_step(const std::string& layer, int64_t embed_dim,
                const at::Tensor& x, const StreamState& state, size_t least);

/// cu_seqlens of the keys: the queries' where x attends to itself.
std::optional<at::Tensor> key_starts(const LayerInput& input);

/// What each of several layers makes of x, by ops::linears.
std::vector<at::Tensor> project(const at::Tensor& x,
                                const std::vector<torch::nn::Linear>& layers);

/// [B,n,H*d] -> [B,H,n,d], a view.
at::Tensor split_heads(const at::Tensor& x, int64_t num_heads);
/// [B,H,n,d] -> [B,n,H*d].
at::Tensor merge_heads(const at::Tensor& x);

/// Two random words for an op's dropout, from the default generator of x's
/// device; none where nothing is dropped.
std::optional<at::Tensor> draw_seed(const at::Tensor& x, double dropout_p);

/// While one lives, a GPU draws the seeds of this thread many at a time: a
/// draw by itself costs it as much as a small layer.
class JointSeeds {
 public:
  JointSeeds();
  ~JointSeeds();
  JointSeeds(const JointSeeds&) = delete;
  JointSeeds& operator=(const JointSeeds&) = delete;

  at::Tensor next(const c10::Device& device);

 private:
  JointSeeds* outer_;
  at::Tensor seeds_;
  int64_t used_ = 0;
};

/// How both nested layers start: every child is a Linear; xavier uniform, gain
/// 1/sqrt(2), or 1 for out_proj; biases 0.
void start_nested_projections(torch::nn::Module& layer);

}  // namespace luna::nn
