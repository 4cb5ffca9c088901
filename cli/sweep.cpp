#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "command.h"
#include "interrupt.h"
#include "luna/io/text_file.h"
#include "luna/report/format.h"
#include "luna/report/run_report.h"
#include "luna/report/table.h"
#include "luna/train/gpu_sharing.h"
#include "luna/train/sweep.h"
#include "run_options.h"

namespace luna::cli {
namespace {

namespace fs = std::filesystem;
using Phase = train::SweepState::Phase;

struct Typed {
  train::SweepPlan plan{};
  int64_t jobs = 1;
  bool mps = false;
  bool dry_run = false;
  RunOptions run{};
};

constexpr auto kPause = std::chrono::milliseconds(200);

/// One run of the sweep and, while it goes, its process.
struct Job {
  const train::SweepRun& run;
  train::SweepState state{};
  std::string data{};  ///< its folder
  pid_t process = 0;
  bool failed = false;

  bool has_to_run() const { return !failed && state.phase != Phase::kFinished; }
  std::string log() const {
    return fs::path(run.folder.path()).parent_path() / "logs" /
           (run.name + ".log");
  }
};

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
    add({job.run.source, "--out", job.run.folder.path()});
    for (const std::string& set : typed.plan.overrides) add({"--set", set});
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

/// Starts this program again, its output to the job's log.
pid_t start(const Job& job, const std::vector<std::string>& words) {
  fs::create_directories(fs::path(job.log()).parent_path());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, job.log().c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  // A group of its own: the terminal's Ctrl-C reaches the sweep alone, which
  // passes it on once.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<char*> argv;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  pid_t process = 0;
  const int error = posix_spawn(&process, "/proc/self/exe", &actions,
                                &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw std::runtime_error(fmt::format("{}: could not be started: {}",
                                         job.run.name, std::strerror(error)));
  }
  return process;
}

/// The last line of a job's log, which says what went wrong.
std::string last_line(const std::string& path) {
  std::string text = io::read_text(path);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t from = text.find_last_of('\n');
  return from == std::string::npos ? text : text.substr(from + 1);
}

/// What goes on, redrawn in place on a terminal.
class Board {
 public:
  Board() : terminal_(isatty(STDERR_FILENO) != 0) {}
  ~Board() { wipe(); }

  void note(const std::string& text) {
    wipe();
    fmt::print(stderr, "{}\n", text);
  }

  /// Whether there is a terminal to draw on.
  bool shows() const { return terminal_; }
  /// A line, where there is no table to look at.
  void log(const std::string& text) {
    if (!terminal_) fmt::print(stderr, "{}\n", text);
  }

  void draw(const std::vector<train::SweepRun>& runs,
            const std::vector<Job>& jobs, int64_t at_once) {
    std::vector<train::SweepState> states;
    int64_t finished = 0, failed = 0;
    report::Table table({{"run", false},
                         {"step", true},
                         {"loss", true},
                         {"accuracy", true},
                         {"steps/s", true}});
    for (const Job& job : jobs) {
      states.push_back(job.state);
      finished += job.state.phase == Phase::kFinished ? 1 : 0;
      failed += job.failed ? 1 : 0;
      if (job.process == 0) continue;
      const auto& s = job.state;
      table.add_row(
          {job.run.name,
           fmt::format("{}/{}", report::grouped(s.step),
                       report::grouped(job.run.config.steps)),
           s.loss ? fmt::format("{:.4f}", *s.loss) : "",
           s.accuracy ? per_cent(*s.accuracy) : "",
           s.steps_per_s ? report::short_number(*s.steps_per_s) : ""});
    }
    const auto left = train::sweep_seconds_left(runs, states, at_once);
    wipe();
    std::string text = table.empty() ? "" : table.text();
    text += fmt::format("{} of {} finished{}{}\n", finished, jobs.size(),
                        failed > 0 ? fmt::format(", {} failed", failed) : "",
                        left ? ", about " + clock_time(*left) + " left" : "");
    fmt::print(stderr, "{}", text);
    std::fflush(stderr);
    lines_ = std::count(text.begin(), text.end(), '\n');
  }

 private:
  void wipe() {
    if (lines_ > 0) fmt::print(stderr, "\033[{}A\033[J", lines_);
    lines_ = 0;
  }

  bool terminal_;
  int64_t lines_ = 0;
};

/// Whether the run's process has ended; keeps what it came to.
bool ended(Job& job, Board& board) {
  int status = 0;
  if (waitpid(job.process, &status, WNOHANG) == 0) return false;
  job.process = 0;
  job.state = train::read_sweep_state(job.run);
  if (job.state.phase == Phase::kFinished) {
    board.note(fmt::format("{}: test accuracy {} after {}", job.run.name,
                           per_cent(job.state.accuracy.value_or(0)),
                           report::duration(job.state.seconds)));
  } else if (!interrupted()) {
    job.failed = true;
    board.note(fmt::format("{}: failed: {}\n  log: {}", job.run.name,
                           last_line(job.log()), job.log()));
  }
  return true;
}

std::string data_folder(const train::TrainConfig& config, const Typed& typed) {
  const std::string& path = config.data.path;
  if (!path.empty() && typed.run.data.empty()) return path;
  const std::string root =
      typed.run.data.empty() ? typed.plan.out + "/data" : typed.run.data;
  if (!config.model.base.empty())
    return root;  // GLUE's files lie in one folder
  // A task has one data set; only of translation there are many.
  const std::string name = fs::path(path).filename().string();
  const bool named = config.data.task == "translation" && !name.empty();
  return root + "/" + (named ? name : config.data.task);
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

void show_plan(const std::vector<Job>& jobs) {
  report::Table table({{"run", false}, {"steps", true}, {"state", false}});
  for (const Job& job : jobs) {
    const bool started = job.state.phase == Phase::kStarted;
    table.add_row({job.run.name, report::grouped(job.run.config.steps),
                   job.state.phase == Phase::kFinished ? "finished"
                   : started ? fmt::format("at step {}", job.state.step)
                             : ""});
  }
  fmt::print("{}", table.text());
}

/// Asks all that run to save and end.
void interrupt_jobs(const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    if (job.process != 0) kill(job.process, SIGTERM);
  }
}

/// The same, and waits until they have.
void end_jobs(std::vector<Job>& jobs) {
  interrupt_jobs(jobs);
  for (Job& job : jobs) {
    if (job.process != 0) waitpid(job.process, nullptr, 0);
    job.process = 0;
  }
}

/// Starts and waits until all are done or the user stops it.
void run_jobs(const std::vector<train::SweepRun>& runs, std::vector<Job>& jobs,
              const Typed& typed) {
  Board board;
  bool told = false;
  const int64_t left = std::ranges::count_if(
      jobs, [](const Job& job) { return job.has_to_run(); });
  const int64_t at_once = std::min(typed.jobs, left);
  auto drawn = std::chrono::steady_clock::time_point();
  for (;;) {
    int64_t running = 0;
    for (Job& job : jobs) {
      if (job.process != 0 && !ended(job, board)) ++running;
    }
    if (interrupted() && !told) {
      interrupt_jobs(jobs);
      board.note("luna sweep: stopping; the runs save where they are");
      told = true;
    }
    for (Job& job : jobs) {
      if (interrupted() || running >= typed.jobs) break;
      if (job.process != 0 || !job.has_to_run()) continue;
      job.process = start(job, arguments_of(job, typed, at_once));
      board.log(fmt::format("{}: started", job.run.name));
      ++running;
    }
    if (running == 0) return;
    const auto now = std::chrono::steady_clock::now();
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
  if (typed.plan.configs.empty()) {
    throw UsageError("expected at least one config of luna train");
  }
  if (typed.jobs < 1) {
    throw UsageError(
        fmt::format("--jobs: expected 1 or more, got {}", typed.jobs));
  }
  if (typed.plan.seeds < 1) {
    throw UsageError(
        fmt::format("--seeds: expected 1 or more, got {}", typed.plan.seeds));
  }
  if (typed.mps && typed.run.device == "cpu") {
    throw UsageError("--mps: expected a GPU, as in --device cuda, got cpu");
  }
  settle_device(typed.run);
  std::vector<train::SweepRun> runs;
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
  open_all_data(jobs, typed);
  if (std::ranges::any_of(jobs,
                          [](const Job& job) { return job.has_to_run(); })) {
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
  if (interrupted()) {
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
      "--mps\n\n"
      "A run's folder is OUT/FOLDER-CONFIG-sSEED, by the config's folder and "
      "name, its output OUT/logs/FOLDER-CONFIG-sSEED.log. Typed again, the "
      "command leaves out what is finished and goes on with "
      "what is not, also on another machine that has the folders.");
  const auto typed = std::make_shared<Typed>();
  app->add_option("configs", typed->plan.configs, "Configs of luna train")
      ->type_name("CONFIG");
  app->add_option("--out", typed->plan.out, "Folder of the runs (runs)")
      ->type_name("DIR");
  app->add_option("--seeds", typed->plan.seeds, "Seeds of each config (1)");
  app->add_option("--first-seed", typed->plan.first_seed, "The first (1)");
  app->add_option("--jobs", typed->jobs, "Runs side by side (1)");
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
