#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace luna::cli {
namespace {

constexpr int kBarWidth = 24;
constexpr int kShortBarWidth = 12;
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

bool Progress::is_time() {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now - last_ < kPause) return false;
  last_ = now;
  return true;
}

void Progress::draw(double share, int width, const std::string& rest) {
  const int full = static_cast<int>(width * std::clamp(share, 0.0, 1.0));
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < full ? "━" : "╌";
  fmt::print(stderr, "\r\033[K{} {}", bar, rest);
  drawn_ = true;
  std::fflush(stderr);
}

void Progress::update(double share, const std::string& what) {
  if (!is_time()) return;
  const double seconds = std::chrono::duration<double>(last_ - start_).count();
  // Cut so that the line never wraps on 80 columns.
  draw(share, kBarWidth,
       fmt::format("{:3.0f} %  {:.0f} s  {:.36}", 100 * share, seconds, what));
}

void Progress::update_line(double share, const std::string& line) {
  if (is_time()) draw(share, kShortBarWidth, fmt::format("{:.66}", line));
}

void Progress::log(const std::string& text) {
  if (!terminal_) fmt::print(stderr, "{}\n", text);
}

void Progress::note(const std::string& text) {
  wipe();
  fmt::print(stderr, "{}\n", text);
}

}  // namespace luna::cli
