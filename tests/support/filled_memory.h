#pragma once

#include <ATen/Context.h>

namespace luna::testing {

/// While it lives, all memory that a tensor gets is NaN first, so that a result
/// is right only if nothing counts that was not written. compute-sanitizer's
/// initcheck does not see what a GPU's copy engine writes: without this it
/// calls even cuBLAS's results unwritten.
class FilledMemory {
 public:
  FilledMemory() : before_(at::globalContext().deterministicAlgorithms()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  ~FilledMemory() {
    at::globalContext().setDeterministicAlgorithms(before_, false);
  }
  FilledMemory(const FilledMemory&) = delete;
  FilledMemory& operator=(const FilledMemory&) = delete;

 private:
  bool before_;
};

}  // namespace luna::testing
