#pragma once

#include <ATen/Context.h>

#include <atomic>

namespace luna::ops {

/// While one lives, kernels that wait long for a fixed order need not have one,
/// on any thread: for who would rather be faster than get the same bits again.
class AnyOrder {
 public:
  AnyOrder() { ++living(); }
  ~AnyOrder() { --living(); }
  AnyOrder(const AnyOrder&) = delete;
  AnyOrder& operator=(const AnyOrder&) = delete;

  static bool is_allowed() { return living() > 0; }

 private:
  static std::atomic<int>& living() {
    static std::atomic<int> count = 0;
    return count;
  }
};

/// While one lives, those of torch's kernels that can add in an order that does
/// not change do so.
class FixedOrder {
 public:
  FixedOrder() {
    context_.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context_.setDeterministicFillUninitializedMemory(false);
  }
  ~FixedOrder() {
    context_.setDeterministicFillUninitializedMemory(filled_);
    context_.setDeterministicAlgorithms(was_, warned_);
  }
  FixedOrder(const FixedOrder&) = delete;
  FixedOrder& operator=(const FixedOrder&) = delete;

 private:
  at::Context& context_ = at::globalContext();
  bool was_ = context_.deterministicAlgorithms();
  bool warned_ = context_.deterministicAlgorithmsWarnOnly();
  bool filled_ = context_.deterministicFillUninitializedMemory();
};

}  // namespace luna::ops
