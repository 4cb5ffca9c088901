// universal_attention on the GPU: by the fused kernels where they apply, else
// with features in memory for the length of a call and sums.h over them; made
// again in the backward.

#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/feature_rows.h"
#include "ops/cuda/fused_causal_sums.h"
#include "ops/cuda/fused_sums.h"
#include "ops/cuda/product_sums.h"
#include "ops/cuda/steps.h"
#include "ops/cuda/sums.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// In bfloat16 where matrix products read them so, as the fused kernels do.
template <typename T>
Tensor features_of(const Features<T>& features, const ops::LinearSums& sums,
                   const Tensor& x) {
  const auto dtype = products_serve(sums, features.width(), x.scalar_type())
                         ? x.scalar_type()
                         : ops::compute_dtype(x);
  const Tensor phi =
      at::empty({x.size(0), x.size(1), x.size(2), features.width()},
                x.options().dtype(dtype));
  features.forward(x, phi);
  return phi;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& projection, const Tensor& projection_bias,
    const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& output_weight, const Tensor& output_bias,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool nonneg, double eps,
    const OptionalTensor& state, const Tensor& table, bool save) {
  const ops::LinearSums sums{query,        key,          value,  key_weight,
                             cu_seqlens_q, cu_seqlens_k, causal, true,
                             eps,          state};
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  constexpr std::string_view kName = "universal_attention";
  ops::check_linear_sums(kName, sums, ops::feature_count(p));
  ops::check_feature_parameters(kName, "query", query, -3, p, table);
  const c10::cuda::CUDAGuard guard(query.device());
  const auto r = dispatch_compute(query, [&]<typename T>() {
    const Features<T> features(p, table, nonneg);
    if constexpr (std::is_same_v<T, float>) {
      auto fused = causal ? causal_forward_sums(sums, features, save)
                          : fused_forward(sums, features, save);
      if (fused) return *fused;
      TORCH_WARN_ONCE(ops::slower_path(kName));
    }
    return forward_sums(sums, features_of(features, sums, query),
                        features_of(features, sums, key), save);
  });
  return {r.output, r.state, r.denominator, r.segment_states};
}

std::vector<Tensor> backward(
    const Tensor& grad_output, const OptionalTensor& grad_state,
    const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& projection, const Tensor& projection_bias,
    const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& output_weight, const Tensor& output_bias,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool nonneg, double eps,
    const OptionalTensor& state, const Tensor& table, const Tensor& output,
    const Tensor& final_state, const Tensor& denominator,
    const Tensor& segment_states) {
  const ops::LinearSums sums{query,        key,          value,  key_weight,
                             cu_seqlens_q, cu_seqlens_k, causal, true,
                             eps,          state};
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  const c10::cuda::CUDAGuard guard(query.device());
  std::vector<Tensor> result = {ops::empty_heads(query), ops::empty_heads(key)};
  const auto or_empty = [&](const Tensor& x) {
    return x.defined() ? x : at::empty({0}, query.options());
  };
  dispatch_compute(query, [&]<typename T>() {
    const Features<T> features(p, table, nonneg);
    if constexpr (std::is_same_v<T, float>) {
      const ops::LinearSumsResult saved{output, final_state, denominator,
                                        segment_states};
      auto fused = causal ? causal_backward_sums(sums, saved, grad_output,
                                                 grad_state, features)
                          : fused_backward_sums(sums, saved, grad_output,
                                                grad_state, features);
      if (fused) {
        result = std::move(*fused);
        return;
      }
    }
    const Tensor phi_query = features_of(features, sums, query),
                 phi_key = features_of(features, sums, key);
    const auto wide = phi_query.options().dtype(ops::compute_dtype(query));
    Tensor grad_phi_query = at::empty(phi_query.sizes(), wide),
           grad_phi_key = at::empty(phi_key.sizes(), wide);
    const SumsGradients g = backward_sums(
        sums, {output, final_state, denominator, segment_states}, grad_output,
        grad_state, phi_query, phi_key, grad_phi_query, grad_phi_key);
    const int64_t parts = std::max(features.parts(query), features.parts(key));
    const Tensor partials = features.empty_partials(2, query.size(1), parts);
    features.backward(query, grad_phi_query, result[0], partials[0]);
    features.backward(key, grad_phi_key, result[1], partials[1]);
    result.push_back(g.value);
    for (Tensor& x : features.gradients(partials, features.knots())) {
      result.push_back(std::move(x));
    }
    result.push_back(or_empty(g.key_weight));
    result.push_back(or_empty(g.state));
  });
  return result;
}

Tensor step(const Tensor& query, const Tensor& key, const Tensor& value,
            Tensor& state, const Tensor& projection,
            const Tensor& projection_bias, const Tensor& hidden_weight,
            const Tensor& hidden_bias, const Tensor& output_weight,
            const Tensor& output_bias, const OptionalTensor& key_weight,
            bool nonneg, double eps, const OptionalTensor& table) {
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  constexpr std::string_view kName = "universal_attention_step";
  ops::check_feature_parameters(kName, "query", query, -2, p, table);
  ops::check_linear_step(kName, query, key, value, state, key_weight, eps,
                         ops::feature_count(p));
  const c10::cuda::CUDAGuard guard(query.device());
  const Tensor output = at::empty(value.sizes(), value.options());
  const Tensor built = ops::table_or_built(query, p, table);
  dispatch_compute(query, [&]<typename T>() {
    const Features<T> features(p, built, nonneg);
    Tensor holder;
    const OptionalTensor weight =
        key_weight ? OptionalTensor(key_weight->unsqueeze(-1)) : std::nullopt;
    advance_states<T>({query.size(0), query.size(1), features.width(),
                       value.size(2), token_rows_of(query), token_rows_of(key),
                       token_rows_of(value), token_rows_of(output),
                       weight_of<T>(weight, state.scalar_type(), holder),
                       state.mutable_data_ptr<T>(), true, static_cast<T>(eps)},
                      features.map(), c10::cuda::getCurrentCUDAStream());
  });
  return output;
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_universal_attention_forward", forward);
  m.impl("universal_attention_backward", backward);
  m.impl("universal_attention_step", step);
}

}  // namespace
}  // namespace luna::cuda
