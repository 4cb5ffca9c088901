#include "sweep_board.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "luna/report/format.h"
#include "luna/report/table.h"
#include "run_options.h"

namespace luna::cli {

using Phase = train::SweepState::Phase;

SweepBoard::SweepBoard() : terminal_(isatty(STDERR_FILENO) != 0) {}

void SweepBoard::note(const std::string& text) {
  if (text.empty()) return;
  wipe();
  fmt::print(stderr, "{}\n", text);
}

void SweepBoard::log(const std::string& text) {
  if (!terminal_) fmt::print(stderr, "{}\n", text);
}

void SweepBoard::draw(const std::vector<train::SweepRun>& runs,
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
    table.add_row({job.run.name,
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

void SweepBoard::wipe() {
  if (lines_ > 0) fmt::print(stderr, "\033[{}A\033[J", lines_);
  lines_ = 0;
}

}  // namespace luna::cli
