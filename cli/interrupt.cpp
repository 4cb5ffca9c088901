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
std::atomic<int64_t> deadline = 0;  ///< 0: none
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void on_signal(int number) {
  int64_t before = 0;
  if (first.compare_exchange_strong(before, now())) return;
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

void interrupt_after(double seconds) {
  deadline = now() + static_cast<int64_t>(seconds * 1e9);
}

bool deadline_is_over() { return deadline != 0 && now() >= deadline; }

bool interrupted() { return first != 0 || deadline_is_over(); }

}  // namespace luna::cli
