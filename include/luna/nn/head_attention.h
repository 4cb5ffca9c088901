#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>

namespace luna::nn {

/// What a head-level mechanism is built for.
struct HeadShape {
  int64_t head_dim = 0;   ///< d, the width of queries and keys
  int64_t num_heads = 1;  ///< H
};

struct AttendOptions {
  /// [B,m] or [B,H,m]; bool (true = takes part) or float >= 0.
  std::optional<at::Tensor> key_weight{};
  /// [B,n], which queries are real: read by batch statistics alone.
  std::optional<at::Tensor> query_mask{};
  /// Packed sequences: B = 1, int32 or int64 [S+1] from 0 to the total.
  std::optional<at::Tensor> cu_seqlens_q{}, cu_seqlens_k{};
  int64_t longest = 0;  ///< of them, as the host knows it; 0: it does not
  bool causal = false;
  std::optional<at::Tensor> state{};     ///< where the sums start
  std::optional<at::Tensor> prepared{};  ///< prepare(), if at hand
};

struct StepOptions {
  std::optional<at::Tensor> key_weight{};  ///< [B] or [B,H]
  std::optional<at::Tensor> prepared{};    ///< prepare(), if at hand
};

/// A mechanism that is a function of the heads' q, k and v: it stands where
/// scaled_dot_product_attention was. Implementations are torch modules.
class HeadAttention {
 public:
  virtual ~HeadAttention() = default;

  /// query [B,H,n,d], key [B,H,m,d], value [B,H,m,dv]
  ///   -> output [B,H,n,dv], state (undefined where the mechanism keeps none)
  virtual std::tuple<at::Tensor, at::Tensor> attend(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const AttendOptions& options = {}) = 0;

  /// One token: query, key [B,H,d], value [B,H,dv] -> [B,H,dv]. Advances
  /// `state` in place; inference only. Refused where there is no state.
  virtual at::Tensor step(const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, at::Tensor state,
                          const StepOptions& options = {});

  /// What follows from the weights alone and can be computed once for many
  /// steps; undefined where there is nothing.
  virtual at::Tensor prepare() { return {}; }
};

/// The module behind the interface, to register it.
std::shared_ptr<torch::nn::Module> as_module(
    const std::shared_ptr<HeadAttention>& heads);

}  // namespace luna::nn
