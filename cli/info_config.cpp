#include "info_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "luna/data/tasks.h"
#include "luna/models/classifier.h"
#include "luna/models/parameter_counts.h"
#include "luna/report/format.h"
#include "luna/report/table.h"
#include "luna/train/read_config.h"

namespace luna::cli {
namespace {

using report::grouped;

/// A config, its task and its model.
struct Described {
  train::TrainConfig config{};
  data::TaskInfo task{};
  int64_t longest = 0;        ///< data ids of a sequence; 0: not known
  int64_t max_positions = 0;  ///< rows of learned positions
  models::ParameterCounts counts{};
  std::string notes{};  ///< what of the config is not read
};

Described describe(const std::string& path,
                   const std::vector<std::string>& overrides) {
  Described d;
  d.config = train::read_train_config(path, overrides);
  d.task = data::find_task(d.config.data.task).info;
  d.longest = d.config.data.max_length > 0 ? d.config.data.max_length
                                           : d.task.height * d.task.width;
  const auto& model = d.config.model;
  const auto built = models::make_model(model, d.task, d.longest);
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
  return text + fmt::format("{} to {:g} at step {}", schedule.name,
                            schedule.floor * lr, grouped(config.steps));
}

void print_text(const Described& d) {
  const auto& model = d.config.model;
  fmt::print("{}\n\n", d.config.name);
  fmt::print("task        {}: {} symbols, {} classes, {}{}\n", d.task.task,
             d.task.vocabulary, d.task.classes,
             d.task.pairs ? "pairs of sequences" : "sequences",
             d.longest > 0 ? " of up to " + grouped(d.longest) : "");
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

  report::Table table({{"part", false}, {"parameters"}});
  const auto add = [&](const char* part, int64_t count) {
    if (count > 0) table.add_row({part, grouped(count)});
  };
  add("token embedding", d.counts.tokens);
  add("position embedding", d.counts.positions);
  add("attention", d.counts.attention);
  add("memory and its norms", d.counts.memory);
  add("FFN", d.counts.ffn);
  add("norms", d.counts.norms);
  add("head", d.counts.head);
  table.start_group();
  add("all", d.counts.total());
  add("without the token embedding", d.counts.total() - d.counts.tokens);
  add("the attention's own", d.counts.own());
  fmt::print("{}", table.text());
  if (!d.notes.empty()) fmt::print("\n{}\n", d.notes);
}

void print_json(const Described& d) {
  const auto& c = d.counts;
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
      {"parameters",
       {{"all", c.total()},
        {"attention_own", c.own()},
        {"parts",
         {{"tokens", c.tokens},
          {"positions", c.positions},
          {"attention", c.attention},
          {"memory", c.memory},
          {"ffn", c.ffn},
          {"norms", c.norms},
          {"head", c.head}}}}},
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
