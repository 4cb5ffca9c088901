#pragma once

// What the ops compute, as plain ATen in a few lines each: slow, obvious and
// differentiable by autograd. They take the public option structs of the ops
// and read the fields that say what is computed; dropout and tables, which say
// how, are ignored. Packed sequences are a loop over the sequences.

#include <ATen/core/Tensor.h>
#include <luna/ops.h>

#include <tuple>

// Options are named where they are set and left out where they are not.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace luna::testing::reference {

/// psi_c(u) for every channel c: [...] -> [..., L], no output ReLU.
at::Tensor psi(const at::Tensor& u, const ops::FeatureMapParameters& p);

/// The arguments of psi, w_i . x + b_i: [..., d] -> [..., M].
at::Tensor project(const at::Tensor& x, const ops::FeatureMapParameters& p);

at::Tensor feature_map(const at::Tensor& x, const ops::FeatureMapParameters& p,
                       bool nonneg = true);

std::tuple<at::Tensor, at::Tensor> linear_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const ops::LinearAttentionOptions& options = {});

std::tuple<at::Tensor, at::Tensor> universal_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const ops::FeatureMapParameters& parameters,
    const ops::UniversalAttentionOptions& options = {});

/// w_j e^{s_j} / sum_j w_j e^{s_j} over the last axis; rows whose weights are
/// all zero give zeros and pass no gradient.
at::Tensor weighted_softmax(const at::Tensor& scores, const at::Tensor& weight);

at::Tensor pack_attention(const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value,
                          const ops::PackAttentionOptions& options = {});

at::Tensor unpack_attention(const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value,
                            const ops::UnpackAttentionOptions& options = {});

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
nested_causal_attention(const at::Tensor& query, const at::Tensor& pack_key,
                        const at::Tensor& key, const at::Tensor& value,
                        const at::Tensor& packed_query,
                        const ops::NestedCausalAttentionOptions& options = {});

}  // namespace luna::testing::reference
