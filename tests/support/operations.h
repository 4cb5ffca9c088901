#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <string>

namespace luna::testing {

/// Counts operations of this thread while it lives: those that compute or
/// copy, not views and memory; what one of them calls is part of it.
class OperationCount {
 public:
  OperationCount();
  ~OperationCount();
  OperationCount(const OperationCount&) = delete;
  OperationCount& operator=(const OperationCount&) = delete;

  const std::map<std::string, int>& by_name() const { return by_name_; }
  int total() const;
  std::string text() const;  ///< "2 aten::addmm, ..."

 private:
  static std::unique_ptr<at::ObserverContext> enter(
      const at::RecordFunction& function);
  static void leave(const at::RecordFunction& function,
                    at::ObserverContext* context);

  static thread_local OperationCount* current;
  std::map<std::string, int> by_name_{};
  int depth_ = 0;
  at::CallbackHandle handle_{};
};

}  // namespace luna::testing
