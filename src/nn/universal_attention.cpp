#include <luna/nn/universal_attention.h>

#include <utility>

namespace luna::nn {

UniversalAttention::UniversalAttention(int64_t embed_dim, int64_t num_heads,
                                       const FeatureMapOptions& options,
                                       bool causal)
    : ModuleHolder(std::make_shared<MultiHeadAttentionImpl>(
          MultiHeadAttentionOptions{{embed_dim, num_heads, causal},
                                    "universal",
                                    config::write_options(options)})) {}

UniversalAttention::UniversalAttention(
    std::shared_ptr<MultiHeadAttentionImpl> layer)
    : ModuleHolder(std::move(layer)) {
  TORCH_CHECK_VALUE(!impl_ || impl_->options().mechanism == "universal",
                    "UniversalAttention: expected a layer of universal, got ",
                    impl_->options().mechanism);
}

FeatureMap UniversalAttention::feature_map() const {
  return FeatureMap(std::dynamic_pointer_cast<FeatureMapImpl>(ptr()->heads()));
}

at::Tensor universal_attention(const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, FeatureMap feature_map,
                               const AttendOptions& options) {
  return std::get<0>(feature_map->attend(query, key, value, options));
}

}  // namespace luna::nn
