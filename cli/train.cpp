#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "interrupt.h"
#include "luna/io/text_file.h"
#include "luna/nn/attention_registry.h"
#include "luna/report/format.h"
#include "luna/report/table.h"
#include "luna/train/plan.h"
#include "luna/train/read_config.h"
#include "luna/train/trainer.h"
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
  bool dry_run = false;
  RunOptions run{};
};

/// Samples that a dry run generates, where the data is not there yet.
constexpr int64_t kDryRunSamples = 64;

TrainConfig read_config(const Typed& typed) {
  if (typed.config.empty() == typed.resume.empty()) {
    throw UsageError("expected either CONFIG or --resume RUN");
  }
  if (!typed.resume.empty() && (!typed.set.empty() || !typed.out.empty())) {
    throw UsageError(
        "--resume: a run goes on as it was started; --set and "
        "--out are for new ones");
  }
  const bool resume = !typed.resume.empty();
  TrainConfig config = train::read_train_config(
      resume ? train::RunFolder(typed.resume).config() : typed.config,
      typed.set);
  if (config.name.empty()) config.name = fs::path(typed.config).stem();
  if (!typed.run.data.empty()) config.data.path = typed.run.data;
  nn::find_attention(config.model.attention);  // before data is made for it
  return config;
}

std::string gibibytes(int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

// --- dry run ----------------------------------------------------------------

Json plan_json(const TrainConfig& config, const train::Plan& plan) {
  Json parts = Json::object(), schedule = Json::array();
  for (const auto& part : plan.parts) parts[part.name] = part.parameters;
  for (const auto& rate : plan.schedule) {
    schedule.push_back({{"step", rate.step}, {"lr", rate.lr}});
  }
  return {{"config", Json::parse(train::config_text(config))},
          {"parameters", plan.parameters},
          {"parts", parts},
          {"length", plan.length},
          {"steps_per_epoch", plan.epoch},
          {"memory_bytes", plan.fixed_bytes + plan.step_bytes},
          {"memory_fixed_bytes", plan.fixed_bytes},
          {"memory_step_bytes", plan.step_bytes},
          {"schedule", schedule}};
}

void print_plan(const TrainConfig& config, const train::Plan& plan,
                const data::Splits& splits) {
  using report::grouped;
  fmt::print(
      "data        {}: {} / {} / {} samples (train / validation / "
      "test), up to {} tokens\n",
      config.data.task, grouped(splits.train->size()),
      grouped(splits.validation->size()), grouped(splits.test->size()),
      grouped(plan.length));
  fmt::print("steps       {} of {} samples; {} a pass over the training data\n",
             grouped(config.steps), grouped(config.batch * config.accumulate),
             grouped(plan.epoch));
  fmt::print(
      "memory      about {}: {} for weights and optimizer, {} for a "
      "step\n",
      gibibytes(plan.fixed_bytes + plan.step_bytes),
      gibibytes(plan.fixed_bytes), gibibytes(plan.step_bytes));
  fmt::print("model       {}, {} layers of width {}, {} parameters\n\n",
             config.model.attention, config.model.layers, config.model.width,
             grouped(plan.parameters));
  report::Table parts({{"part", false}, {"parameters", true}});
  for (const auto& part : plan.parts) {
    parts.add_row({part.name, grouped(part.parameters)});
  }
  report::Table schedule({{"step", true}, {"learning rate", true}});
  for (const auto& rate : plan.schedule) {
    schedule.add_row({grouped(rate.step), fmt::format("{:.3g}", rate.lr)});
  }
  fmt::print("{}\n{}", parts.text(), schedule.text());
}

int dry_run(const TrainConfig& config, const RunOptions& options) {
  train::DataConfig data = config.data;
  // Packed splits are opened; what would have to be generated is not.
  if (data.path.empty() || !fs::exists(data.path)) {
    data.path.clear();
    data.samples = kDryRunSamples;
  }
  const data::Splits splits = open_run_data(data, "");
  const train::Plan plan = train::make_plan(config, splits);
  if (options.json) {
    fmt::print("{}\n", plan_json(config, plan).dump(2));
  } else {
    print_plan(config, plan, splits);
  }
  return kOk;
}

// --- training ---------------------------------------------------------------

std::string metrics_line(const train::Progress& p) {
  return fmt::format("loss {:.4f}  accuracy {}", p.loss, per_cent(p.accuracy));
}

void show(Progress& bar, const train::Progress& p) {
  const std::string step = fmt::format("step {}/{}", p.step, p.steps);
  switch (p.phase) {
    case Phase::kTraining:
      bar.update_line(
          static_cast<double>(p.step) / static_cast<double>(p.steps),
          fmt::format("{}/{}  loss {:.4f}  acc {}  {} tok/s  {} left", p.step,
                      p.steps, p.loss, per_cent(p.accuracy),
                      report::short_number(p.tokens_per_s),
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
      bar.note(fmt::format("test of the best: {}", metrics_line(p)));
  }
}

void print_end(const train::RunFolder& run, const train::TrainResult& result) {
  if (result.end == train::TrainResult::End::kStoppedEarly) {
    fmt::print("stopped early at step {}: no better validation since step {}\n",
               result.step, result.best.step);
  }
  fmt::print("best at step {}: validation accuracy {}, test accuracy {}\n",
             result.best.step, per_cent(result.best.accuracy),
             per_cent(result.test->accuracy));
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
  const train::RunFolder run(
      resume ? typed.resume
             : (typed.out.empty() ? "runs/" + config.name : typed.out));
  const c10::Device device = settle_device(typed.run);
  if (resume && show_finished(run, typed.run.json)) return kOk;
  if (!resume && run.holds_run()) {
    throw UsageError(fmt::format(
        "{} holds a run; go on with it by luna train --resume {}, or name "
        "another by --out",
        run.path(), run.path()));
  }
  catch_interrupts();
  const data::Splits splits = open_run_data(config.data, run.path() + "/data");
  Progress bar;
  const train::TrainHooks hooks{
      .progress = [&](const train::Progress& p) { show(bar, p); },
      .warn =
          [&](const std::string& text) {
            bar.note("luna train: warning: " + text);
          },
      .stop = interrupted};
  const train::TrainResult result = train::train(
      config, splits,
      {.folder = run.path(), .resume = resume, .device = device}, hooks);
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
      "  luna train --resume runs/wide\n\n"
      "Ctrl-C and SIGTERM save and end with exit code 130. docs/training.md "
      "explains the run's folder.");
  const auto typed = std::make_shared<Typed>();
  app->add_option("config", typed->config, "A run's config, JSON")
      ->type_name("CONFIG");
  app->add_option("--out", typed->out, "The run's folder (runs/NAME)")
      ->type_name("RUN");
  app->add_option("--set", typed->set,
                  "Change a value of the config; repeatable")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  app->add_option("--resume", typed->resume, "Go on with a run")
      ->type_name("RUN");
  app->add_flag("--dry-run", typed->dry_run,
                "Print model, parameters, memory and schedule; train nothing");
  add_run_options(*app, typed->run);
  return {app, [typed] {
            const TrainConfig config = read_config(*typed);
            return unless_interrupted("train", [&] {
              return typed->dry_run ? dry_run(config, typed->run)
                                    : train_run(config, *typed);
            });
          }};
}

}  // namespace luna::cli
