#include "ops/adam_step.h"

#include <torch/library.h>

#include "ops/dispatch.h"

namespace luna::ops {
namespace {

using at::Tensor;

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def("_norm_of_few(Tensor[] tensors) -> Tensor");
  m.def(
      "_adam_step_of_few(Tensor(a!)[] parameters, Tensor[] gradients, "
      "Tensor(b!)[] first, Tensor(c!)[] second, Tensor updates, Tensor lr, "
      "Tensor scale, Tensor skip, float beta1, float beta2, float eps, "
      "float weight_decay, bool decoupled) -> ()");
}

}  // namespace

bool are_few(at::TensorList tensors) {
  constexpr size_t kMost = 128;
  constexpr int64_t kMostNumbers = int64_t{1} << 22;
  if (tensors.empty() || tensors.size() > kMost) return false;
  int64_t numbers = 0;
  for (const Tensor& tensor : tensors) {
    if (!tensor.is_cuda() || tensor.scalar_type() != at::kFloat ||
        !tensor.is_contiguous()) {
      return false;
    }
    numbers += tensor.numel();
  }
  return numbers <= kMostNumbers;
}

Tensor norm_of_few(at::TensorList tensors) {
  static const auto op = find_op<Tensor(at::TensorList)>("luna::_norm_of_few");
  return op.call(tensors);
}

void adam_step_of_few(at::TensorList parameters, at::TensorList gradients,
                      at::TensorList first, at::TensorList second,
                      const AdamState& state, const AdamRules& rules) {
  using Signature =
      void(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
           const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
           double, double, double, bool);
  static const auto op = find_op<Signature>("luna::_adam_step_of_few");
  op.call(parameters, gradients, first, second, state.updates, state.lr,
          state.scale, state.skip, rules.beta1, rules.beta2, rules.eps,
          rules.weight_decay, rules.decoupled);
}

}  // namespace luna::ops
