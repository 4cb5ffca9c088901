#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <luna/data/glue.h>
#include <luna/data/tasks.h>
#include <luna/data/translation.h>
#include <luna/io/text_file.h>
#include <luna/models/check_model.h>
#include <luna/nn/attention_registry.h>
#include <luna/train/read_config.h>

#include <algorithm>
#include <array>

#include "config/check_options.h"
#include "config/json.h"

namespace luna::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kChangeable = {"steps", "log_every", "checkpoint_every",
                                    "keep_checkpoints", "patience"};

/// What no default should decide.
constexpr std::array kRequired = {"data.task", "model.attention"};

void check_stated(const std::string& origin, const Json& json) {
  const Json stated = json.flatten();
  for (const std::string key : kRequired) {
    std::string pointer = "/" + key;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    TORCH_CHECK_VALUE(stated.contains(pointer), origin, ": expected at least ",
                      fmt::format("{}", fmt::join(kRequired, " and ")),
                      ", got no ", key,
                      "; luna train --help-config lists all keys");
  }
}

/// What a run of translation does not read must not be there.
void check_translation(const std::string& origin, const TrainConfig& config) {
  const auto& [data, model] = std::tie(config.data, config.model);
  const std::string task = origin + ": data.task = translation: ";
  TORCH_CHECK_VALUE(data.max_length == 0 && !data.augment && data.mixup == 0 &&
                        data.cutmix == 0,
                    task,
                    "expected no max_length, augment, mixup and cutmix, got "
                    "one");
  config::check_option_map(origin + ": data.settings: translation", {},
                           data.settings);
  TORCH_CHECK_VALUE(model.base.empty() && model.patch == 0, task,
                    "expected no model.base and model.patch, got one");
  models::check_model(origin + ": model", model);
  TORCH_CHECK_VALUE(model.positions == "sinusoidal", task,
                    "expected model.positions = sinusoidal, got ",
                    model.positions);
  const auto& traits = nn::find_attention(model.attention).traits;
  TORCH_CHECK_VALUE(traits.causal && traits.cross, task,
                    "expected a mechanism that can be causal and attend to "
                    "another sequence, got ",
                    model.attention);
}

/// Tasks that a model can have: a Hugging Face folder's reads texts or colour
/// pictures, one of our own everything but GLUE's.
std::vector<std::string> tasks_for(const models::ModelConfig& model) {
  if (model.base.empty() && model.patch == 0) {
    auto names = data::task_names();
    names.push_back(data::kTranslationTask);
    return names;
  }
  auto names = data::colour_task_names();
  if (!model.base.empty()) {
    const auto texts = data::glue_task_names();
    names.insert(names.begin(), texts.begin(), texts.end());
  }
  return names;
}

void check_pictures(const std::string& data, const TrainConfig& config) {
  const bool vit = config.model.patch > 0 || !config.model.base.empty();
  const bool pictures = !data::is_glue_task(config.data.task) &&
                        data::find_task(config.data.task).info.height > 0;
  TORCH_CHECK_VALUE(!config.data.augment || pictures, data,
                    ".augment: expected a task of pictures, got ",
                    config.data.task);
  TORCH_CHECK_VALUE(
      (config.data.mixup == 0 && config.data.cutmix == 0) || (vit && pictures),
      data, ".mixup, .cutmix: expected a ViT (model.patch), got none");
  TORCH_CHECK_VALUE(config.data.mixup + config.data.cutmix <= 1, data,
                    ".mixup, .cutmix: expected shares of at most 1 together, "
                    "got ",
                    config.data.mixup, " and ", config.data.cutmix);
  TORCH_CHECK_VALUE(!(vit && pictures) || config.data.max_length == 0, data,
                    ".max_length: expected 0 with a ViT, got ",
                    config.data.max_length);
}

void check_sense(const std::string& origin, const TrainConfig& config) {
  const std::string data = origin + ": data";
  TORCH_CHECK_VALUE(config.average <= config.keep_checkpoints, origin,
                    ": expected keep_checkpoints of at least average, ",
                    config.average, ", got ", config.keep_checkpoints);
  if (config.data.task == data::kTranslationTask) {
    return check_translation(origin, config);
  }
  config::check_option_value(
      data, {.name = "task", .choices = tasks_for(config.model)},
      config.data.task);
  config::check_option_map(data + ".settings: " + config.data.task,
                           data::is_glue_task(config.data.task)
                               ? std::vector<config::OptionInfo>{}
                               : data::find_task(config.data.task).settings,
                           config.data.settings);
  check_pictures(data, config);
  models::check_model(origin + ": model", config.model);
}

TrainConfig read_whole(const std::string& origin, const Json& json) {
  const auto config = config::read_json<TrainConfig>(origin, json);
  check_stated(origin, json);
  check_sense(origin, config);
  return config;
}

bool makes_sense(const Json& json) {
  try {
    read_whole("", json);
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

template <class Config>
void add_keys(const std::string& before, const Config& config,
              std::vector<config::OptionInfo>& keys) {
  Config::visit(config, [&](const auto& field, config::OptionInfo info) {
    using Field = std::remove_cvref_t<decltype(field)>;
    info.name = before + info.name;
    if constexpr (config::detail::Nested<const Field>) {
      add_keys(info.name + ".", field, keys);
    } else {
      if constexpr (std::is_same_v<Field, config::OptionMap>) {
        info.default_value = std::string("{}");
      } else {
        info.default_value = field;
      }
      keys.push_back(std::move(info));
    }
  });
}

}  // namespace

TrainConfig read_train_config(const std::string& path,
                              const std::vector<std::string>& overrides) {
  const Json file = config::parse_json(io::read_text(path), path);
  if (overrides.empty()) return read_whole(path, file);
  config::read_json<TrainConfig>(path, file);  // its own mistakes first
  Json json = file;
  for (const std::string& assignment : overrides) {
    config::set_value(json, assignment);
    config::read_json<TrainConfig>("--set " + assignment, json);
  }
  // Keys may make sense only together; blame the file for what it is alone.
  return read_whole(
      makes_sense(file)
          ? fmt::format("--set {}", fmt::join(overrides, " --set "))
          : path,
      json);
}

TrainConfig read_resumed_config(const RunFolder& run,
                                const std::vector<std::string>& overrides) {
  const TrainConfig before = read_train_config(run.config());
  if (overrides.empty()) return before;
  const TrainConfig after = read_train_config(run.config(), overrides);
  const std::string given =
      fmt::format("--set {}", fmt::join(overrides, " --set "));
  const std::string anew = fmt::format(
      "; to train anew: luna train {} --out OTHER {}", run.config(), given);
  const Json old = config::write_json(before).flatten();
  const Json now = config::write_json(after).flatten();
  for (const auto& [pointer, value] : now.items()) {
    std::string key = pointer.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    const bool may_change = std::find(kChangeable.begin(), kChangeable.end(),
                                      key) != kChangeable.end();
    TORCH_CHECK_VALUE(may_change || old.value(pointer, Json()) == value, given,
                      ": expected only ",
                      fmt::format("{}", fmt::join(kChangeable, ", ")),
                      " to change in a run that goes on, got ", key, anew);
  }
  const std::string& schedule = after.schedule.name;
  TORCH_CHECK_VALUE(
      after.steps == before.steps || schedule == "constant" ||
          schedule == "inverse_sqrt" || schedule == "milestones",
      given,
      ": expected a schedule that does not depend on steps (constant, "
      "inverse_sqrt, milestones), got ",
      schedule,
      ", by which the steps that are done "
      "would have had other learning rates",
      anew);
  const std::vector<int64_t> saved = run.steps();
  TORCH_CHECK_VALUE(saved.empty() || after.steps >= saved.front(), given,
                    ": expected at least the ", saved.front(),
                    " steps that are done, got ", after.steps);
  return after;
}

std::vector<std::string> config_warnings(const TrainConfig& config) {
  std::vector<std::string> warnings;
  if (config.schedule.warmup >= config.steps) {
    warnings.push_back(fmt::format(
        "schedule.warmup: expected fewer than the run's {} steps, got {}: the "
        "learning rate never reaches {:g}",
        config.steps, config.schedule.warmup, config.optimizer.lr));
  }
  return warnings;
}

std::vector<config::OptionInfo> config_keys() {
  std::vector<config::OptionInfo> keys;
  add_keys("", TrainConfig{}, keys);
  for (config::OptionInfo& key : keys) {
    if (std::find(kRequired.begin(), kRequired.end(), key.name) !=
        kRequired.end()) {
      key.default_value = std::string("required");
    }
  }
  return keys;
}

}  // namespace luna::train
