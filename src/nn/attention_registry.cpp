#include <c10/util/Exception.h>
#include <luna/nn/attention_registry.h>
#include <luna/nn/feature_map.h>
#include <luna/nn/linear_attention.h>
#include <luna/nn/multi_head_attention.h>
#include <luna/nn/nested_attention.h>
#include <luna/nn/nested_causal_attention.h>
#include <luna/nn/rff_attention.h>
#include <luna/nn/softmax_attention.h>
#include <torch/library.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace luna::nn {
namespace {

/// A head-level mechanism: `Impl` takes a HeadShape and its Options.
template <class Impl>
AttentionInfo heads(const std::string& name, std::string summary,
                    AttentionTraits traits, std::string publication) {
  using Options = typename Impl::Options;
  traits.head_level = true;
  return {name,
          std::move(summary),
          traits,
          std::move(publication),
          config::describe_options<Options>(),
          [name](HeadShape shape, const config::OptionMap& options) {
            return std::make_shared<Impl>(
                shape, config::read_options<Options>(name, options));
          },
          [name](const LayerShape& shape, const config::OptionMap& options) {
            return std::make_shared<MultiHeadAttentionImpl>(
                MultiHeadAttentionOptions{shape, name, options});
          }};
}

/// A mechanism that is a layer: `Impl`, and `Causal` for decoders, take a
/// LayerShape and their Options.
template <class Impl, class Causal>
AttentionInfo layers(const std::string& name, std::string summary,
                     AttentionTraits traits, std::string publication) {
  auto options = config::describe_options<typename Impl::Options>();
  for (auto& info : config::describe_options<typename Causal::Options>()) {
    const bool known =
        std::any_of(options.begin(), options.end(),
                    [&](const auto& other) { return other.name == info.name; });
    if (!known) options.push_back(std::move(info));
  }
  return {name,
          std::move(summary),
          traits,
          std::move(publication),
          std::move(options),
          nullptr,
          [name](const LayerShape& shape, const config::OptionMap& options)
              -> std::shared_ptr<AttentionLayer> {
            TORCH_CHECK_VALUE(shape.local.taps == 0, name,
                              ": expected no local sum, got ", shape.local.taps,
                              " taps");
            if (shape.causal) {
              return std::make_shared<Causal>(
                  shape, config::read_options<typename Causal::Options>(
                             name + " (causal)", options));
            }
            return std::make_shared<Impl>(
                shape,
                config::read_options<typename Impl::Options>(name, options));
          }};
}

}  // namespace

const std::vector<AttentionInfo>& attentions() {
  static const std::vector<AttentionInfo> table{
      heads<SoftmaxAttentionImpl>(
          "softmax", "softmax attention by torch's own kernels; quadratic",
          {.causal = true, .cross = true},
          "Vaswani et al. 2017, arXiv 1706.03762"),
      heads<FeatureMapImpl>(
          "universal", "linear attention with a learned kernel feature map",
          {.causal = true, .cross = true, .streams = true},
          "LUNA: Linear Universal Neural Attention, arXiv 2512.08061"),
      layers<NestedAttentionImpl, NestedCausalAttentionImpl>(
          "nested", "two nested softmax attentions through a packed memory",
          {.causal = true, .cross = true, .streams = true, .memory = true},
          "Luna: Linear Unified Nested Attention, NeurIPS 2021, "
          "arXiv 2106.01540"),
      heads<LinearAttentionImpl>(
          "linear", "linear attention with the fixed features elu(x) + 1",
          {.causal = true, .cross = true, .streams = true},
          "Katharopoulos et al. 2020, arXiv 2006.16236"),
      heads<RffAttentionImpl>(
          "rff", "linear attention with fixed random Fourier features",
          {.causal = true, .cross = true, .streams = true},
          "Rahimi and Recht 2007; the ablation of arXiv 2512.08061"),
  };
  return table;
}

const AttentionInfo& find_attention(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& info : attentions()) {
    if (info.name == name) return info;
    known.push_back(info.name);
  }
  TORCH_CHECK_VALUE(false, "attention: expected one of ",
                    config::known_and_nearest(name, known), ", got ", name);
}

std::shared_ptr<HeadAttention> make_head_attention(
    const std::string& name, HeadShape shape,
    const config::OptionMap& options) {
  const auto& info = find_attention(name);
  TORCH_CHECK_VALUE(
      info.traits.head_level,
      "make_head_attention: expected a head-level mechanism, got ", name,
      ", which is a whole layer");
  return info.make_heads(shape, options);
}

std::shared_ptr<AttentionLayer> make_attention_layer(
    const std::string& name, const LayerShape& shape,
    const config::OptionMap& options) {
  return find_attention(name).make_layer(shape, options);
}

std::string attentions_json() {
  auto all = nlohmann::ordered_json::array();
  for (const auto& info : attentions()) {
    auto options = nlohmann::ordered_json::array();
    for (const auto& option : info.options) {
      nlohmann::ordered_json entry{
          {"name", option.name},
          {"type", config::type_name(option.default_value)},
          {"help", option.help}};
      std::visit([&](const auto& value) { entry["default"] = value; },
                 option.default_value);
      if (option.minimum) entry["minimum"] = *option.minimum;
      if (option.maximum) entry["maximum"] = *option.maximum;
      if (!option.choices.empty()) entry["choices"] = option.choices;
      options.push_back(std::move(entry));
    }
    all.push_back({{"name", info.name},
                   {"summary", info.summary},
                   {"traits",
                    {{"head_level", info.traits.head_level},
                     {"causal", info.traits.causal},
                     {"cross", info.traits.cross},
                     {"streams", info.traits.streams},
                     {"memory", info.traits.memory}}},
                   {"publication", info.publication},
                   {"options", std::move(options)}});
  }
  return all.dump();
}

}  // namespace luna::nn

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def("attentions() -> str", &luna::nn::attentions_json);
}
