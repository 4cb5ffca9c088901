#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace luna::cli {
namespace {

constexpr int kBarWidth = 24;
constexpr auto kPause = std::chrono::milliseconds(100);

}  // namespace

Progress::Progress()
    : terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_(start_ - kPause) {}

Progress::~Progress() { wipe(); }

void Progress::wipe() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = false;
  std::fflush(stderr);
}

void Progress::update(double share, const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now - last_ < kPause) return;
  last_ = now;
  const int full = static_cast<int>(kBarWidth * std::clamp(share, 0.0, 1.0));
  std::string bar;
  for (int i = 0; i < kBarWidth; ++i) bar += i < full ? "━" : "╌";
  const double seconds = std::chrono::duration<double>(now - start_).count();
  // Cut so that the line never wraps on 80 columns.
  fmt::print(stderr, "\r\033[K{} {:3.0f} %  {:.0f} s  {:.36}", bar, 100 * share,
             seconds, what);
  drawn_ = true;
  std::fflush(stderr);
}

void Progress::log(const std::string& text) {
  if (!terminal_) fmt::print(stderr, "{}\n", text);
}

}  // namespace luna::cli
