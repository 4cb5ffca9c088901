#include <c10/util/Exception.h>
#include <luna/models/check_model.h>
#include <luna/nn/attention_registry.h>

#include "config/check_options.h"

namespace luna::models {
namespace {

std::vector<std::string> mechanisms() {
  std::vector<std::string> names;
  for (const auto& info : nn::attentions()) names.push_back(info.name);
  return names;
}

/// A folder says what its model is made of.
void check_base(const std::string& where, const ModelConfig& config) {
  const nn::AttentionInfo& mechanism = nn::find_attention(config.attention);
  TORCH_CHECK_VALUE(mechanism.traits.head_level, where,
                    ".attention: expected a head-level mechanism with base, "
                    "got ",
                    config.attention);
  std::vector<config::OptionValue> defaults;
  const ModelConfig fresh;
  ModelConfig::visit(fresh, [&](const auto& field, const config::OptionInfo&) {
    using Field = std::remove_cvref_t<decltype(field)>;
    if constexpr (!std::is_same_v<Field, config::OptionMap>) {
      defaults.emplace_back(field);
    }
  });
  auto standard = defaults.begin();
  ModelConfig::visit(
      config, [&](const auto& field, const config::OptionInfo& info) {
        using Field = std::remove_cvref_t<decltype(field)>;
        if constexpr (!std::is_same_v<Field, config::OptionMap>) {
          const config::OptionValue usual = *standard++;
          const bool own = info.name == "base" || info.name == "attention";
          TORCH_CHECK_VALUE(own || config::OptionValue(field) == usual, where,
                            ".", info.name,
                            ": expected no value beside base, whose folder "
                            "says it, got ",
                            config::to_string(config::OptionValue(field)));
        }
      });
}

/// What Hugging Face's ViT is, and no other.
void check_vit(const std::string& where, const ModelConfig& config) {
  TORCH_CHECK_VALUE(nn::find_attention(config.attention).traits.head_level,
                    where,
                    ".attention: expected a head-level mechanism with patch, "
                    "got ",
                    config.attention);
  const auto expect = [&](const char* name, const config::OptionValue& given,
                          const config::OptionValue& only) {
    TORCH_CHECK_VALUE(given == only, where, ".", name, ": expected ",
                      config::to_string(only), " with patch, got ",
                      config::to_string(given));
  };
  expect("norm", config.norm, std::string("pre"));
  expect("local", config.local, int64_t{0});
  expect("embedding", config.embedding, std::string("table"));
  expect("black", config.black, std::string("pixel"));
  expect("embedding_norm", config.embedding_norm, false);
  expect("positions", config.positions, std::string("learned"));
  expect("max_positions", config.max_positions, int64_t{0});
  expect("activation_dropout", config.activation_dropout, 0.0);
  expect("pooling", config.pooling, std::string("cls"));
  expect("head", config.head, std::string("linear"));
}

std::string mechanisms_with_memory() {
  std::string names;
  for (const auto& info : nn::attentions()) {
    if (info.traits.memory) names += (names.empty() ? "" : ", ") + info.name;
  }
  return names;
}

}  // namespace

void check_model(const std::string& where, const ModelConfig& config) {
  ModelConfig::visit(
      config, [&](const auto& field, const config::OptionInfo& info) {
        using Field = std::remove_cvref_t<decltype(field)>;
        if constexpr (!std::is_same_v<Field, config::OptionMap>) {
          config::check_option_value(where, info, field);
        }
      });
  config::check_option_value(
      where, {.name = "attention", .choices = mechanisms()}, config.attention);
  const nn::AttentionInfo& mechanism = nn::find_attention(config.attention);
  config::check_option_map(where + ".attention_options: " + mechanism.name,
                           mechanism.options, config.attention_options);
  if (!config.base.empty()) return check_base(where, config);
  TORCH_CHECK_VALUE(config.pooling != "memory" || mechanism.traits.memory,
                    where, ": expected a mechanism with a memory (",
                    mechanisms_with_memory(), ") for pooling = memory, got ",
                    config.attention);
  TORCH_CHECK_VALUE(config.pooling != "memory" || config.contextual_memory,
                    where,
                    ": expected contextual_memory for pooling = memory, got a "
                    "memory that knows nothing of the input");
  TORCH_CHECK_VALUE(
      config.source_attention == "same" || !mechanism.traits.memory, where,
      ".source_attention: expected same with ", config.attention,
      ", whose memory carries the source, got ", config.source_attention);
  TORCH_CHECK_VALUE((config.head == "mlp") == (config.head_hidden > 0), where,
                    ": expected head_hidden > 0 for head = mlp and 0 for "
                    "linear, got ",
                    config.head_hidden, " for ", config.head);
  TORCH_CHECK_VALUE(config.width % config.heads == 0, where,
                    ": expected width to be a multiple of heads, got ",
                    config.width, " and ", config.heads, " heads");
  TORCH_CHECK_VALUE(config.local == 0 || config.local % 2 == 1, where,
                    ".local: expected an odd number of taps, or 0, got ",
                    config.local);
  TORCH_CHECK_VALUE(config.local == 0 || mechanism.traits.head_level, where,
                    ".local: expected 0 with ", config.attention,
                    ", which is no head-level mechanism, got ", config.local);
  TORCH_CHECK_VALUE(config.local > 0 || config.local_shape == "line", where,
                    ".local_shape: expected line without local, got ",
                    config.local_shape);
  TORCH_CHECK_VALUE(config.local == 0 || config.local_shape == "line" ||
                        config.pooling != "cls",
                    where,
                    ".local_shape: expected line with pooling = cls, whose "
                    "token stands in no row of the picture, got square");
  if (config.patch > 0) check_vit(where, config);
  const auto own = config.attention_options.find("dropout");
  TORCH_CHECK_VALUE(
      config.attention_dropout == 0 || own == config.attention_options.end(),
      where,
      ": expected attention_dropout or attention_options.dropout, got both, ",
      config.attention_dropout, " and ", config::to_string(own->second));
}

}  // namespace luna::models
