#include "train/result_key.h"

#include <luna/nn/attention_registry.h>

#include <variant>

#include "config/json.h"

namespace luna::train {

nlohmann::ordered_json result_key(TrainConfig config) {
  const TrainConfig any;
  config.name = any.name;
  config.data.path = any.data.path;
  config.patience = any.patience;
  config.repeatable = any.repeatable;
  nlohmann::ordered_json all = config::write_json(config).flatten();
  all.erase("/model/attention_options");  // no options at all
  for (const nn::AttentionInfo& mechanism : nn::attentions()) {
    if (mechanism.name != config.model.attention) continue;
    for (const config::OptionInfo& info : mechanism.options) {
      const std::string key = "/model/attention_options/" + info.name;
      if (all.contains(key)) continue;
      std::visit([&](const auto& value) { all[key] = value; },
                 info.default_value);
    }
  }
  return all;
}

}  // namespace luna::train
