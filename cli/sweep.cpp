#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "command.h"
#include "interrupt.h"
#include "luna/report/format.h"
#include "luna/report/run_report.h"
#include "luna/report/table.h"
#include "luna/train/gpu_sharing.h"
#include "luna/train/open_data.h"
#include "luna/train/sweep.h"
#include "run_options.h"
#include "sweep_board.h"
#include "sweep_jobs.h"

namespace luna::cli {
namespace {

using Phase = train::SweepState::Phase;

struct Typed {
  std::vector<std::string> configs{};  ///< and lists of them
  int64_t seeds = 1, first_seed = 1;
  train::SweepPlan plan{};
  int64_t jobs = 1;
  double minutes = 0;  ///< after which it ends; 0: none
  bool mps = false;
  bool dry_run = false;
  RunOptions run{};
};

using Clock = std::chrono::steady_clock;
constexpr auto kPause = std::chrono::milliseconds(200);

/// `at_once`: runs that may go at the same time as this one, itself counted.
std::vector<std::string> arguments_of(const Job& job, const Typed& typed,
                                      int64_t at_once) {
  std::vector<std::string> words = {"luna", "train"};
  const auto add = [&](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  if (job.state.phase == Phase::kStarted) {
    add({"--resume", job.run.folder.path()});
  } else {
    add({job.run.source.file, "--out", job.run.folder.path()});
    for (const auto* sets :
         {&job.run.source.overrides, &typed.plan.overrides}) {
      for (const std::string& set : *sets) add({"--set", set});
    }
    add({"--set", "name=" + job.run.config.name, "--set",
         fmt::format("seed={}", job.run.config.seed)});
  }
  add({"--data", job.data, "--device", typed.run.device});
  if (at_once > 1) add({"--side-by-side", std::to_string(at_once)});
  if (typed.run.threads > 0) {
    add({"--threads", std::to_string(typed.run.threads)});
  }
  return words;
}

std::string data_folder(const train::TrainConfig& config, const Typed& typed) {
  const std::string& path = config.data.path;
  if (!path.empty() && typed.run.data.empty()) return path;
  const std::string root =
      typed.run.data.empty() ? typed.plan.out + "/data" : typed.run.data;
  if (!config.model.base.empty())
    return root;  // GLUE's files lie in one folder
  return root + "/" + train::data_set_name(config.data);
}

/// Makes or checks the data of all that are not finished before any run
/// starts, so that no two runs make it at once. Runs without data fail.
void open_all_data(std::vector<Job>& jobs, const Typed& typed) {
  std::map<std::string, std::string> errors;  // by folder; empty: it is there
  for (Job& job : jobs) {
    if (job.state.phase == Phase::kFinished) continue;
    job.data = data_folder(job.run.config, typed);
    const auto [error, is_first] = errors.emplace(job.data, "");
    if (is_first) {
      train::TrainConfig at = job.run.config;
      at.data.path = job.data;
      try {
        open_run_data("sweep", at, "");
      } catch (const c10::Error& e) {
        error->second = e.what_without_backtrace();
      } catch (const std::exception& e) {
        error->second = e.what();
      }
    }
    if (error->second.empty()) continue;
    job.failed = true;
    fmt::print(stderr, "{}: failed: {}\n", job.run.name,
               is_first ? error->second : "no data, as above");
  }
}

int64_t to_do(const std::vector<Job>& jobs) {
  return std::ranges::count_if(jobs, &Job::has_to_run);
}

void show_plan(const std::vector<Job>& jobs) {
  report::Table table({{"run", false}, {"steps", true}, {"state", false}});
  for (const Job& job : jobs) {
    const bool started = job.state.phase == Phase::kStarted;
    table.add_row({job.run.name, report::grouped(job.run.config.steps),
                   job.run.kept                          ? "kept"
                   : job.state.phase == Phase::kFinished ? "finished"
                   : started ? fmt::format("at step {}", job.state.step)
                             : ""});
  }
  fmt::print("{}", table.text());
}

/// Starts and waits until all are done, the user stops it or the minutes that
/// it has are over.
void run_jobs(const std::vector<train::SweepRun>& runs, std::vector<Job>& jobs,
              const Typed& typed) {
  SweepBoard board;
  bool told = false;
  const int64_t at_once = std::min(typed.jobs, to_do(jobs));
  auto drawn = Clock::time_point();
  for (;;) {
    int64_t running = 0;
    for (Job& job : jobs) {
      if (job.process == 0) continue;
      if (ended(job)) {
        board.note(outcome(job));
      } else {
        ++running;
      }
    }
    const auto now = Clock::now();
    if (interrupted() && !told) {
      if (deadline_is_over()) {
        board.note(
            fmt::format("luna sweep: {:g} minutes are over", typed.minutes));
      }
      interrupt_jobs(jobs);
      board.note("luna sweep: stopping; the runs save where they are");
      told = true;
    }
    for (Job& job : jobs) {
      if (interrupted() || running >= typed.jobs) break;
      if (job.process != 0 || !job.has_to_run()) continue;
      start(job, arguments_of(job, typed, at_once));
      board.log(fmt::format("{}: started", job.run.name));
      ++running;
    }
    if (running == 0) return;
    if (board.shows() && now - drawn > std::chrono::seconds(1)) {
      for (Job& job : jobs) {
        if (job.process != 0) job.state = train::read_sweep_state(job.run);
      }
      board.draw(runs, jobs, typed.jobs);
      drawn = now;
    }
    std::this_thread::sleep_for(kPause);
  }
}

int sweep(Typed typed) {
  if (typed.configs.empty()) {
    throw UsageError("expected at least one config of luna train");
  }
  if (typed.jobs < 1) {
    throw UsageError(
        fmt::format("--jobs: expected 1 or more, got {}", typed.jobs));
  }
  if (typed.seeds < 1) {
    throw UsageError(
        fmt::format("--seeds: expected 1 or more, got {}", typed.seeds));
  }
  if (typed.minutes < 0) {
    throw UsageError(fmt::format(
        "--minutes: expected 0 (no limit) or more, got {:g}", typed.minutes));
  }
  if (typed.mps && typed.run.device == "cpu") {
    throw UsageError("--mps: expected a GPU, as in --device cuda, got cpu");
  }
  settle_device(typed.run);
  std::vector<train::SweepRun> runs;
  try {
    typed.plan.configs = train::read_sweep_configs(
        typed.configs, {typed.first_seed, typed.first_seed + typed.seeds - 1});
  } catch (const c10::ValueError& error) {
    throw UsageError(error.what_without_backtrace());
  }
  or_usage([&] { runs = train::plan_sweep(typed.plan); });
  std::vector<Job> jobs;
  for (const train::SweepRun& run : runs) {
    train::check_same_run(run);
    jobs.push_back({.run = run, .state = train::read_sweep_state(run)});
  }
  if (typed.dry_run) {
    show_plan(jobs);
    return kOk;
  }
  catch_interrupts();
  if (typed.minutes > 0) interrupt_after(60 * typed.minutes);
  open_all_data(jobs, typed);
  if (to_do(jobs) > 0) {
    std::optional<train::GpuSharing> sharing;
    if (typed.mps) sharing.emplace();
    try {
      run_jobs(runs, jobs, typed);
    } catch (...) {  // nobody would watch them, and the service waits for them
      end_jobs(jobs);
      throw;
    }
  }

  std::vector<report::Run> done;
  int64_t failed = 0;
  for (const Job& job : jobs) {
    failed += job.failed ? 1 : 0;
    if (job.run.folder.holds_run()) {
      done.push_back(report::read_run(job.run.folder.path()));
    }
  }
  const report::RunReport all = report::make_report(std::move(done));
  fmt::print("{}", typed.run.json ? report::report_json(all)
                                  : report::report_text(all));
  std::fflush(stdout);
  if (interrupted() && to_do(jobs) > 0) {
    fmt::print(stderr,
               "luna sweep: interrupted; the same command goes on with it\n");
    return kInterrupted;
  }
  if (failed > 0) {
    fmt::print(stderr,
               "luna sweep: error: {} of {} runs failed; the same command "
               "tries them again\n",
               failed, jobs.size());
    return kFailure;
  }
  fmt::print(stderr, "the page: luna report {}\n", typed.plan.out);
  return kOk;
}

}  // namespace

Command add_sweep(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "sweep", "Train many configs and seeds; goes on where it was cut off");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  luna sweep configs/small/needles-*.json --seeds 3 --out runs/needles\n"
      "  luna sweep configs/lra/*/image-*.json --device cuda --jobs 3 "
      "--mps\n"
      "  luna sweep @configs/lra/runs.txt --kept docs/results/lra "
      "--set autocast=bf16 --dry-run\n\n"
      "A run's folder is OUT/FOLDER-CONFIG-sSEED, by the config's folder and "
      "name, its output OUT/logs/FOLDER-CONFIG-sSEED.log. Typed again, the "
      "command leaves out what is finished and goes on with "
      "what is not, also on another machine that has the folders.");
  const auto typed = std::make_shared<Typed>();
  app->add_option("configs", typed->configs,
                  "Configs of luna train; CONFIG:3 or CONFIG:2-3 with seeds of "
                  "its own, @LIST for a file with one on each line, with "
                  "assignments behind (patience=8)")
      ->type_name("CONFIG");
  app->add_option("--out", typed->plan.out, "Folder of the runs (runs)")
      ->type_name("DIR");
  app->add_option("--kept", typed->plan.kept,
                  "Folder of luna report --keep; its finished runs are not "
                  "trained again")
      ->type_name("DIR");
  app->add_option("--seeds", typed->seeds,
                  "Seeds of each config that names none (1)");
  app->add_option("--first-seed", typed->first_seed, "The first (1)");
  app->add_option("--jobs", typed->jobs, "Runs side by side (1)");
  app->add_option("--minutes", typed->minutes,
                  "End in order after so many, as by Ctrl-C; 0: no limit (0)");
  app->add_flag("--mps", typed->mps,
                "Runs side by side compute at the same time, by NVIDIA's "
                "Multi-Process Service; else they take turns");
  app->add_option("--set", typed->plan.overrides,
                  "Change a value of all configs; repeatable")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  app->add_flag("--dry-run", typed->dry_run, "Print the runs; train nothing");
  add_run_options(*app, typed->run);
  app->get_option("--data")->description(
      "Folder with one folder of data for each task, of translation one called "
      "as the config's (OUT/data)");
  return {app, [typed] {
            return unless_interrupted("sweep", [&] { return sweep(*typed); });
          }};
}

}  // namespace luna::cli
