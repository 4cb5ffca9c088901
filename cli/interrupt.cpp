#include "interrupt.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace luna::cli {
namespace {

/// What comes this soon after the first is the first once more: `timeout` sends
/// its signal to the process and again to the group.
constexpr int64_t kSameNanoseconds = 500'000'000;

/// When the first came, whichever thread it came to; 0: none has.
std::atomic<int64_t> first = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void on_signal(int number) {
  const int64_t before = first;
  if (before == 0) {
    interrupt();
    return;
  }
  if (now() - before < kSameNanoseconds) return;
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

void interrupt() {
  int64_t none = 0;
  first.compare_exchange_strong(none, now());
}

bool interrupted() { return first != 0; }

}  // namespace luna::cli
