#include "models/attention_options.h"

#include <luna/models/model.h>
#include <luna/nn/attention_registry.h>
#include <luna/nn/nested_attention.h>

#include <algorithm>

namespace luna::models {

namespace {

bool is_on(const config::OptionMap& options, const char* name) {
  const auto found = options.find(name);
  return found != options.end() && std::get<bool>(found->second);
}

}  // namespace

bool has_attention_dropout(const std::string& attention) {
  const auto& options = nn::find_attention(attention).options;
  return std::any_of(options.begin(), options.end(), [](const auto& option) {
    return option.name == "dropout";
  });
}

config::OptionMap attention_options(const ModelConfig& config) {
  auto options = config.attention_options;
  if (config.attention_dropout == 0 ||
      !has_attention_dropout(config.attention)) {
    return options;
  }
  options["dropout"] = config.attention_dropout;
  return options;
}

bool take_dynamic_projection(config::OptionMap& options) {
  const bool dynamic =
      config::read_options<nn::NestedAttentionOptions>("nested", options)
          .dynamic_projection;
  options["dynamic_projection"] = false;
  return dynamic;
}

config::OptionMap without_causal_options(const std::string& attention,
                                         const config::OptionMap& options) {
  if (nn::find_attention(attention).traits.memory) {
    return read_by<nn::NestedAttentionOptions>(options);
  }
  auto others = options;
  others.erase("gate");  // rff's
  return others;
}

bool rows_are_apart(const config::OptionMap& options) {
  return !is_on(options, "ch_rms");
}

std::string packing_refused(const std::string& attention,
                            const config::OptionMap& options) {
  if (!rows_are_apart(options)) {
    return attention + " attention with ch_rms, a statistic of all rows";
  }
  if (is_on(options, "gate")) return attention + " attention with gate";
  return {};
}

}  // namespace luna::models
