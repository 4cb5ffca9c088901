#include "support/operations.h"

#include <array>
#include <sstream>
#include <string_view>

namespace luna::testing {
namespace {

// Views, memory, and names for what other operations do.
constexpr std::array kFree = {
    "aten::alias",
    "aten::as_strided",
    "aten::broadcast_to",
    "aten::contiguous",
    "aten::detach",
    "aten::dropout",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::expand",
    "aten::expand_as",
    "aten::flatten",
    "aten::layer_norm",
    "aten::linear",
    "aten::matmul",
    "aten::narrow",
    "aten::new_empty",
    "aten::numpy_T",
    "aten::permute",
    "aten::promote_types",
    "aten::reshape",
    "aten::resolve_conj",
    "aten::result_type",
    "aten::select",
    "aten::slice",
    "aten::split",
    "aten::split_with_sizes",
    "aten::squeeze",
    "aten::t",
    "aten::to",
    "aten::transpose",
    "aten::unflatten",
    "aten::unsqueeze",
    "aten::view",
    "aten::_reshape_alias",
    "aten::_unsafe_view",
};

struct Counted : at::ObserverContext {};

bool is_free(std::string_view name) {
  for (const std::string_view free : kFree) {
    if (name == free) return true;
  }
  return false;
}

}  // namespace

thread_local OperationCount* OperationCount::current = nullptr;

OperationCount::OperationCount() {
  current = this;
  handle_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(enter, leave)
                                     .scopes({at::RecordScope::FUNCTION}));
}

OperationCount::~OperationCount() {
  at::removeCallback(handle_);
  current = nullptr;
}

int OperationCount::total() const {
  int sum = 0;
  for (const auto& [name, count] : by_name_) sum += count;
  return sum;
}

std::string OperationCount::text() const {
  std::ostringstream out;
  for (const auto& [name, count] : by_name_) {
    out << (out.tellp() > 0 ? ", " : "") << count << " " << name;
  }
  return out.str();
}

std::unique_ptr<at::ObserverContext> OperationCount::enter(
    const at::RecordFunction& function) {
  if (is_free(function.name())) return nullptr;
  if (current->depth_++ == 0) ++current->by_name_[function.name()];
  return std::make_unique<Counted>();
}

void OperationCount::leave(const at::RecordFunction&,
                           at::ObserverContext* context) {
  if (context != nullptr) --current->depth_;
}

}  // namespace luna::testing
