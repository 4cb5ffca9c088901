#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "interrupt.h"
#include "luna/io/text_file.h"
#include "luna/report/format.h"
#include "luna/report/table.h"
#include "luna/train/open_data.h"
#include "luna/train/plan.h"
#include "luna/train/read_config.h"
#include "luna/train/trainer.h"
#include "parameters.h"
#include "progress.h"
#include "run_options.h"

namespace luna::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Phase = train::Progress::Phase;
using train::TrainConfig;

struct Typed {
  std::string config{}, out{}, resume{};
  std::vector<std::string> set{};
  bool dry_run = false, help_config = false;
  int64_t side_by_side = 1;
  RunOptions run{};
};

TrainConfig read_config(const Typed& typed) {
  if (typed.config.empty() == typed.resume.empty()) {
    throw UsageError("expected either CONFIG or --resume RUN");
  }
  TrainConfig config;
  if (typed.resume.empty()) {
    config = read_config_or_usage(typed.config, typed.set);
  } else {
    if (!typed.out.empty()) {
      throw UsageError(
          "--resume: a run goes on in its own folder; --out is for new ones");
    }
    train::check_run_folder(typed.resume);
    const train::RunFolder run(typed.resume);
    or_usage([&] { config = train::read_resumed_config(run, typed.set); });
  }
  if (config.name.empty()) config.name = fs::path(typed.config).stem();
  if (!typed.run.data.empty()) config.data.path = typed.run.data;
  for (const std::string& text : train::config_warnings(config)) {
    warn("train", text);
  }
  return config;
}

train::RunFolder folder_of(const TrainConfig& config, const Typed& typed) {
  if (!typed.resume.empty()) return train::RunFolder(typed.resume);
  return train::RunFolder(typed.out.empty() ? "runs/" + config.name
                                            : typed.out);
}

std::string data_folder(const train::RunFolder& run) {
  return run.path() + "/data";
}

// --- the keys ---------------------------------------------------------------

std::string allowed_text(const config::OptionInfo& key) {
  if (!key.choices.empty()) {
    return fmt::format("{}", fmt::join(key.choices, ", "));
  }
  std::string text;
  if (key.minimum) text += fmt::format("from {:g}", *key.minimum);
  if (key.maximum) text += fmt::format(" to {:g}", *key.maximum);
  return text;
}

int print_keys(bool json) {
  if (json) {
    Json all = Json::array();
    for (const config::OptionInfo& key : train::config_keys()) {
      all.push_back({{"key", key.name},
                     {"default", config::to_string(key.default_value)},
                     {"allowed", allowed_text(key)},
                     {"help", key.help}});
    }
    fmt::print("{}\n", all.dump(2));
    return kOk;
  }
  report::Table table(
      {{"key", false}, {"default", false}, {"what it is", false}});
  for (const config::OptionInfo& key : train::config_keys()) {
    const std::string allowed = allowed_text(key);
    table.add_row({key.name, config::to_string(key.default_value),
                   allowed.empty()
                       ? key.help
                       : fmt::format("{} ({})", key.help, allowed)});
  }
  fmt::print("{}", table.text());
  return kOk;
}

// --- dry run ----------------------------------------------------------------

Json plan_json(const TrainConfig& config, const train::DataPlan& data,
               const train::Plan& plan) {
  Json schedule = Json::array(), samples = Json::object();
  for (const auto& rate : plan.schedule) {
    schedule.push_back({{"step", rate.step}, {"lr", rate.lr}});
  }
  for (size_t i = 0; i < data::kSplitNames.size(); ++i) {
    samples[data::kSplitNames[i]] = data.facts.samples[i];
  }
  Json json = {{"config", Json::parse(train::config_text(config))},
               {"samples", samples},
               {"data_note", data.note},
               {"parameters", parameters_json(plan.parameters)},
               {"length", plan.length},
               {"memory_bytes", plan.fixed_bytes + plan.step_bytes},
               {"memory_fixed_bytes", plan.fixed_bytes},
               {"memory_step_bytes", plan.step_bytes},
               {"schedule", schedule}};
  if (plan.epoch > 0) json["steps_per_epoch"] = plan.epoch;
  return json;
}

void print_plan(const TrainConfig& config, const train::DataPlan& data,
                const train::Plan& plan) {
  using report::grouped;
  const auto size = [](int64_t bytes) {
    return report::memory_size(static_cast<double>(bytes));
  };
  fmt::print(
      "data        {}: {} / {} / {} samples (train / validation / "
      "test), up to {} tokens\n",
      config.data.task, grouped(data.facts.samples[0]),
      grouped(data.facts.samples[1]), grouped(data.facts.samples[2]),
      grouped(plan.length));
  if (!data.note.empty()) fmt::print("            {}\n", data.note);
  if (plan.epoch == 0) {
    fmt::print("steps       {} of up to {} tokens of either language\n",
               grouped(config.steps),
               grouped(config.translation.batch_tokens * config.accumulate));
  } else {
    fmt::print(
        "steps       {} of {} samples; {} a pass over the training data\n",
        grouped(config.steps), grouped(config.batch * config.accumulate),
        grouped(plan.epoch));
  }
  fmt::print(
      "memory      about {}: {} for weights and optimizer, {} for a "
      "step\n",
      size(plan.fixed_bytes + plan.step_bytes), size(plan.fixed_bytes),
      size(plan.step_bytes));
  if (config.model.base.empty()) {
    fmt::print("model       {}, {} layers of width {}\n\n",
               config.model.attention, config.model.layers, config.model.width);
  } else {
    fmt::print("model       {} with {} attention\n\n", config.model.base,
               config.model.attention);
  }
  report::Table schedule({{"step", true}, {"learning rate", true}});
  for (const auto& rate : plan.schedule) {
    schedule.add_row({grouped(rate.step), fmt::format("{:.3g}", rate.lr)});
  }
  fmt::print("{}\n{}", parameters_text(plan.parameters), schedule.text());
}

int dry_run(const TrainConfig& config, const Typed& typed) {
  settle_device(typed.run);
  const train::DataPlan data =
      train::plan_data(config, data_folder(folder_of(config, typed)));
  const std::string less = train::shortfall(config.data, data.facts.samples);
  if (!less.empty()) warn("train", less);
  const train::Plan plan = train::make_plan(config, data.facts);
  if (typed.run.json) {
    fmt::print("{}\n", plan_json(config, data, plan).dump(2));
  } else {
    print_plan(config, data, plan);
  }
  return kOk;
}

// --- training ---------------------------------------------------------------

std::string metrics_line(const train::Progress& p) {
  const std::string loss = fmt::format("loss {:.4f}", p.loss);
  return p.metric.empty() ? loss : loss + "  " + score_text(p.metric, p.score);
}

void show(Progress& bar, const train::Progress& p) {
  const std::string step = fmt::format("step {}/{}", p.step, p.steps);
  switch (p.phase) {
    case Phase::kTraining:
      bar.update_line(
          static_cast<double>(p.step) / static_cast<double>(p.steps),
          fmt::format("{}/{}  {}  {} tok/s  {} left", p.step, p.steps,
                      metrics_line(p), report::short_number(p.tokens_per_s),
                      clock_time(p.seconds_left)));
      return;
    case Phase::kLogged:
      bar.log(fmt::format("{}  {}  lr {:.2e}  {} tokens/s  {} left", step,
                          metrics_line(p), p.lr,
                          report::short_number(p.tokens_per_s),
                          clock_time(p.seconds_left)));
      return;
    case Phase::kValidated:
      bar.note(fmt::format("{}  validation: {}", step, metrics_line(p)));
      return;
    case Phase::kSaved:
      return;
    case Phase::kTested:
      bar.note(fmt::format("test: {}", metrics_line(p)));
  }
}

void print_end(const train::RunFolder& run, const train::TrainResult& result) {
  if (result.end == train::TrainResult::End::kStoppedEarly) {
    fmt::print("stopped early at step {}: no better validation since step {}\n",
               result.step, result.best.step);
  }
  const std::string& metric = result.test->metric;
  fmt::print("best at step {}: validation {}, test {}\n", result.best.step,
             score_text(metric, result.best.score),
             score_text(metric, result.test->score));
  fmt::print("run: {}\n", run.path());
}

/// A run that has been finished before: says what it came to.
bool show_finished(const train::RunFolder& run, bool json) {
  if (!fs::exists(run.summary())) return false;
  const std::string text = io::read_text(run.summary());
  const Json summary = Json::parse(text, nullptr, false);
  if (summary.is_discarded() || !summary.value("finished", false)) {
    return false;
  }
  fmt::print(stderr, "{} is finished; nothing to do\n", run.path());
  if (json) fmt::print("{}", text);
  return true;
}

int train_run(const TrainConfig& config, const Typed& typed) {
  const bool resume = !typed.resume.empty();
  const train::RunFolder run = folder_of(config, typed);
  const c10::Device device = settle_device(typed.run);
  if (resume && typed.set.empty() && show_finished(run, typed.run.json)) {
    return kOk;
  }
  if (!resume && run.holds_run()) {
    throw UsageError(fmt::format(
        "{} holds a run; go on with it by luna train --resume {}, or name "
        "another by --out",
        run.path(), run.path()));
  }
  catch_interrupts();
  const data::Splits splits = open_run_data("train", config, data_folder(run));
  Progress bar;
  const train::TrainHooks hooks{
      .progress = [&](const train::Progress& p) { show(bar, p); },
      .warn =
          [&](const std::string& text) {
            bar.note("luna train: warning: " + text);
          },
      .stop = interrupted};
  const train::TrainResult result =
      train::train(config, splits,
                   {.folder = run.path(),
                    .resume = resume,
                    .side_by_side = typed.side_by_side,
                    .device = device},
                   hooks);
  if (result.end == train::TrainResult::End::kInterrupted) {
    bar.note(fmt::format(
        "luna train: interrupted after step {}; saved {}\n"
        "go on with: luna train --resume {}",
        result.step,
        result.checkpoint.empty() ? "nothing yet" : result.checkpoint,
        run.path()));
    return kInterrupted;
  }
  if (typed.run.json) {
    fmt::print("{}", io::read_text(run.summary()));
  } else {
    print_end(run, result);
  }
  return kOk;
}

}  // namespace

Command add_train(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("train", "Train a model; resumable, bit by bit");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  luna train configs/small/listops-universal.json\n"
      "  luna train CONFIG --out runs/wide --set model.width=128 --set "
      "seed=2\n"
      "  luna train --resume runs/wide\n"
      "  luna train --help-config\n\n"
      "Ctrl-C and SIGTERM save and end with exit code 130. docs/training.md "
      "explains the run's folder.");
  const auto typed = std::make_shared<Typed>();
  app->add_option("config", typed->config, "A run's config, JSON")
      ->type_name("CONFIG");
  app->add_option("--out", typed->out, "The run's folder (runs/NAME)")
      ->type_name("RUN");
  app->add_option("--set", typed->set,
                  "Change a value of the config; repeatable (--help-config: "
                  "the keys)")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  app->add_option("--resume", typed->resume, "Go on with a run")
      ->type_name("RUN");
  app->add_option(
         "--side-by-side", typed->side_by_side,
         "Runs that may share the machine meanwhile, this one counted; "
         "the summary says so beside its times (1)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  app->add_flag("--dry-run", typed->dry_run,
                "Print model, parameters, memory and schedule; train nothing");
  app->add_flag("--help-config", typed->help_config,
                "Print every key of a config with its default and exit");
  add_run_options(*app, typed->run);
  return {app, [typed] {
            if (typed->help_config) return print_keys(typed->run.json);
            const TrainConfig config = read_config(*typed);
            return unless_interrupted("train", [&] {
              return typed->dry_run ? dry_run(config, *typed)
                                    : train_run(config, *typed);
            });
          }};
}

}  // namespace luna::cli
