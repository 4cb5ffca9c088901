#pragma once

#include <luna/nn/feature_map.h>
#include <luna/nn/multi_head_attention.h>

namespace luna::nn {

/// A layer of universal attention: MultiHeadAttention over a FeatureMap.
///
/// Names: q_proj, k_proj, v_proj, out_proj, feature_map.*
class UniversalAttention
    : public torch::nn::ModuleHolder<MultiHeadAttentionImpl> {
 public:
  UniversalAttention(int64_t embed_dim, int64_t num_heads,
                     const FeatureMapOptions& options = {},
                     bool causal = false);
  /// A layer of the mechanism `universal` that is there already, or none.
  UniversalAttention(std::shared_ptr<MultiHeadAttentionImpl> layer);
  UniversalAttention(std::nullptr_t) : ModuleHolder(nullptr) {}

  FeatureMap feature_map() const;
};

/// One call at head level, where scaled_dot_product_attention was:
/// query [B,H,n,d], key [B,H,m,d], value [B,H,m,dv] -> [B,H,n,dv].
at::Tensor universal_attention(const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, FeatureMap feature_map,
                               const AttendOptions& options = {});

}  // namespace luna::nn
