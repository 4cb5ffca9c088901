#include "train/non_finite.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/isposinf.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <unordered_map>

namespace luna::train {
namespace {

struct Watch {
  std::unordered_map<const void*, std::string> module_of;  ///< by storage
  std::string module = "the input";
  std::string found;
  bool backward = false;  ///< the forward pass is over
  int64_t depth = 0;      ///< operations that have been entered and not left
};

thread_local Watch* watch = nullptr;

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                              : nullptr;
}

template <class Values, class Visit>
void each_tensor(const Values& values, Visit&& visit) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (tensor.defined()) visit(tensor);
      }
    }
  }
}

bool is_bad(const at::Tensor& tensor) {
  return tensor.is_floating_point() && tensor.numel() > 0 &&
         tensor.isnan().logical_or(tensor.isposinf()).any().item<bool>();
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
  if (call.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    watch->backward = true;
  }
  ++watch->depth;
  each_tensor(call.inputs(), [](const at::Tensor& tensor) {
    const auto found = watch->module_of.find(storage_of(tensor));
    if (found != watch->module_of.end()) watch->module = found->second;
  });
  return nullptr;
}

void leave(const at::RecordFunction& call, at::ObserverContext*) {
  // Within an operation there is memory that is not written yet.
  if (--watch->depth > 0 || watch->backward) return;
  const std::string name = call.name();
  if (!watch->found.empty() || name.find("empty") != std::string::npos) return;
  const at::RecordFunctionGuard unobserved(/*is_enabled=*/false);
  each_tensor(call.outputs(), [&](const at::Tensor& tensor) {
    if (watch->found.empty() && is_bad(tensor)) {
      watch->found = fmt::format("{} ({})", watch->module, name);
    }
  });
}

/// Has the operations of this thread reported to a watch for its lifetime.
class Observed {
 public:
  explicit Observed(Watch& reported)
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(enter, leave)
                .needsInputs(true)
                .needsOutputs(true)
                .scopes({at::RecordScope::FUNCTION,
                         at::RecordScope::BACKWARD_FUNCTION}))) {
    watch = &reported;
  }
  ~Observed() {
    at::removeCallback(handle_);
    watch = nullptr;
  }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;

 private:
  at::CallbackHandle handle_;
};

std::string owner(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? parameter : parameter.substr(0, dot);
}

}  // namespace

std::string first_non_finite(
    const torch::nn::Module& model,
    const std::function<void()>& forward_and_backward) {
  Watch here;
  for (const auto& item : model.named_parameters()) {
    here.module_of[storage_of(item.value())] = owner(item.key());
  }
  {
    const Observed observed(here);
    forward_and_backward();
  }
  if (!here.found.empty()) return here.found;
  std::string last_bad_gradient;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    if (gradient.defined() && !gradient.isfinite().all().item<bool>()) {
      last_bad_gradient = fmt::format("{} (its gradient)", owner(item.key()));
    }
  }
  return last_bad_gradient;
}

}  // namespace luna::train
