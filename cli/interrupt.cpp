#include "interrupt.h"

#include <csignal>

namespace luna::cli {
namespace {

volatile std::sig_atomic_t flag = 0;

void raise_flag(int) { flag = 1; }

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = raise_flag;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return flag != 0; }

}  // namespace luna::cli
