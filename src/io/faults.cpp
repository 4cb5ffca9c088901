#include "luna/io/faults.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <mutex>

#include "io/system_calls.h"

namespace luna::io {
namespace {

struct State {
  std::mutex mutex{};
  Fault fault{};
  int64_t calls = 0;
};

State& state() {
  static State instance;
  static std::once_flag once;
  std::call_once(once, [] {
    const char* text = std::getenv("LUNA_FAULT");
    if (text != nullptr && *text != '\0') instance.fault = parse_fault(text);
  });
  return instance;
}

/// Counts the call; the fault that hits it, or one without action.
Fault count(const char* name) {
  State& s = state();
  const std::lock_guard guard(s.mutex);
  if (!s.fault.point.empty() && s.fault.point != name) return {};
  ++s.calls;
  const bool hit =
      s.fault.repeats ? s.calls >= s.fault.call : s.calls == s.fault.call;
  return hit ? s.fault : Fault{};
}

int act(const Fault& fault) {
  if (fault.action == Fault::Action::kKill) {
    ::kill(::getpid(), SIGKILL);
    ::pause();  // until the signal is there
  }
  return fault.action == Fault::Action::kFail ? fault.error : 0;
}

}  // namespace

Fault parse_fault(const std::string& text) {
  Fault fault;
  const size_t first = text.find(':');
  const size_t last = text.rfind(':');
  const std::string action = text.substr(0, first);
  bool good = first != std::string::npos;
  if (action == "kill") {
    fault.action = Fault::Action::kKill;
  } else if (action == "fail") {
    fault.action = Fault::Action::kFail;
  } else {
    good = false;
  }
  if (good) {
    if (last > first) fault.point = text.substr(first + 1, last - first - 1);
    const char* end = text.data() + text.size();
    const auto [at, error] =
        std::from_chars(text.data() + last + 1, end, fault.call);
    good = error == std::errc() && at == end && fault.call >= 1;
  }
  TORCH_CHECK_VALUE(good,
                    "LUNA_FAULT: expected kill:N, fail:N, kill:CALL:N or "
                    "fail:CALL:N with N from 1, got ",
                    text);
  return fault;
}

void set_fault(const Fault& fault) {
  State& s = state();
  const std::lock_guard guard(s.mutex);
  s.fault = fault;
  s.calls = 0;
}

int64_t fault_calls() {
  State& s = state();
  const std::lock_guard guard(s.mutex);
  return s.calls;
}

int fault_point(const char* name) { return act(count(name)); }

int system::fault_point_of_write(int descriptor, const void* data,
                                 size_t bytes) {
  const Fault fault = count("write");
  if (fault.action == Fault::Action::kNone) return 0;
  if (::write(descriptor, data, bytes / 2) < 0) return errno;
  return act(fault);
}

}  // namespace luna::io
