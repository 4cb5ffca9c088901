#include "interrupt.h"

#include <csignal>
#include <ctime>

namespace luna::cli {
namespace {

/// What comes this soon after the first is the first once more: `timeout` sends
/// its signal to the process and again to the group.
constexpr double kSameSeconds = 0.5;

volatile std::sig_atomic_t flag = 0;
timespec first = {};

void on_signal(int number) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (flag == 0) {
    first = now;
    flag = 1;
    return;
  }
  const double since = static_cast<double>(now.tv_sec - first.tv_sec) +
                       static_cast<double>(now.tv_nsec - first.tv_nsec) * 1e-9;
  if (since < kSameSeconds) return;
  std::signal(number, SIG_DFL);
  raise(number);  // when this returns
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return flag != 0; }

}  // namespace luna::cli
