#include "info_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "luna/data/tasks.h"
#include "luna/data/translation.h"
#include "luna/models/classifier.h"
#include "luna/models/parameter_counts.h"
#include "luna/report/format.h"
#include "luna/train/open_data.h"
#include "luna/train/run_model.h"
#include "parameters.h"
#include "run_options.h"

namespace luna::cli {
namespace {

using report::grouped;

/// A config, its task and its model.
struct Described {
  train::TrainConfig config{};
  data::TaskInfo task{};
  int64_t longest = 0;        ///< data ids of a sequence
  int64_t max_positions = 0;  ///< rows of learned positions
  models::ParameterCounts counts{};
  std::string notes{};  ///< what of the config is not read
};

Described describe(const std::string& path,
                   const std::vector<std::string>& overrides) {
  Described d;
  d.config = read_config_or_usage(path, overrides);
  const data::TaskFacts facts =
      d.config.data.task == data::kTranslationTask
          ? train::plan_data(d.config, "").facts
          : data::task_facts(data::find_task(d.config.data.task),
                             d.config.data.settings);
  d.task = facts.info;
  d.longest = d.config.data.max_length > 0
                  ? std::min(facts.longest, d.config.data.max_length)
                  : facts.longest;
  const auto& model = d.config.model;
  const auto built = train::make_run_model(model, d.task, d.longest);
  d.counts = models::count_parameters(*built);
  d.max_positions = d.counts.positions / model.width;
  if (model.attention_dropout > 0 &&
      !models::has_attention_dropout(model.attention)) {
    d.notes = fmt::format(
        "attention_dropout {} is not read: {} has no map to drop from",
        model.attention_dropout, model.attention);
  }
  return d;
}

std::string options_text(const config::OptionMap& options) {
  std::vector<std::string> all;
  for (const auto& [name, value] : options) {
    all.push_back(name + " = " + config::to_string(value));
  }
  return all.empty() ? "" : fmt::format(" ({})", fmt::join(all, ", "));
}

std::string schedule_text(const train::TrainConfig& config) {
  const auto& schedule = config.schedule;
  const double lr = config.optimizer.lr;
  std::string text;
  if (schedule.warmup > 0) {
    text = fmt::format("{:g} to {:g} over {} steps, then ", schedule.start * lr,
                       lr, grouped(schedule.warmup));
  }
  if (schedule.name == "constant") return text + fmt::format("{:g}", lr);
  if (schedule.name == "inverse_sqrt") {
    return text + "falling with the inverse square root of the step";
  }
  if (schedule.name == "milestones") {
    return text + fmt::format("{:g}, times {:g} at steps {}", lr,
                              schedule.factor, schedule.milestones);
  }
  return text + fmt::format("{} to {:g} at step {}", schedule.name,
                            schedule.floor * lr, grouped(config.steps));
}

void print_text(const Described& d) {
  const auto& model = d.config.model;
  fmt::print("{}\n\n", d.config.name);
  fmt::print("task        {}: {} symbols, {} classes, {} of up to {}\n",
             d.task.task, d.task.vocabulary, d.task.classes,
             d.task.pairs ? "pairs of sequences" : "sequences",
             grouped(d.longest));
  fmt::print("attention   {}{}\n", model.attention,
             options_text(model.attention_options));
  fmt::print("layers      {} of width {}, FFN {} ({}), {} heads, {}-norm\n",
             model.layers, model.width, model.ffn, model.activation,
             model.heads, model.norm);
  fmt::print("positions   {}{}\n", model.positions,
             d.max_positions > 0 ? ", " + grouped(d.max_positions) : "");
  if (d.counts.memory > 0) {
    fmt::print("memory      {} rows\n", model.memory_length);
  }
  fmt::print("pooling     {}, head {}\n", model.pooling, model.head);
  fmt::print("dropout     {}, attention {}, activation {}\n", model.dropout,
             model.attention_dropout, model.activation_dropout);
  fmt::print("optimizer   {}, learning rate {}\n", d.config.optimizer.name,
             schedule_text(d.config));
  fmt::print("steps       {} of {} samples\n\n", grouped(d.config.steps),
             grouped(d.config.batch * d.config.accumulate));

  fmt::print("{}", parameters_text(d.counts));
  if (!d.notes.empty()) fmt::print("\n{}\n", d.notes);
}

void print_json(const Described& d) {
  nlohmann::ordered_json json = {
      {"name", d.config.name},
      {"task",
       {{"name", d.task.task},
        {"vocabulary", d.task.vocabulary},
        {"classes", d.task.classes},
        {"pairs", d.task.pairs},
        {"longest", d.longest}}},
      {"attention", d.config.model.attention},
      {"layers", d.config.model.layers},
      {"max_positions", d.max_positions},
      {"parameters", parameters_json(d.counts)},
      {"schedule", schedule_text(d.config)},
      {"steps", d.config.steps},
      {"batch", d.config.batch * d.config.accumulate}};
  if (!d.notes.empty()) json["notes"] = d.notes;
  fmt::print("{}\n", json.dump(2));
}

}  // namespace

void print_config(const std::string& path,
                  const std::vector<std::string>& overrides, bool json) {
  const auto described = describe(path, overrides);
  json ? print_json(described) : print_text(described);
}

}  // namespace luna::cli
