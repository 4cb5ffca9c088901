#pragma once

#include <ATen/Context.h>

namespace luna::testing {

/// While it lives, the memory that at::empty gives is NaN (integers: their
/// largest) first, so that a result is right only if nothing counts that was
/// not written. compute-sanitizer's initcheck does not see what a GPU's copy
/// engine writes: without this it calls even cuBLAS's results unwritten.
class FilledMemory {
 public:
  FilledMemory()
      : before_(at::globalContext().deterministicAlgorithms()),
        warned_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  ~FilledMemory() {
    at::globalContext().setDeterministicAlgorithms(before_, warned_);
  }
  FilledMemory(const FilledMemory&) = delete;
  FilledMemory& operator=(const FilledMemory&) = delete;

 private:
  bool before_, warned_;
};

}  // namespace luna::testing
