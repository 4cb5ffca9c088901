#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <initializer_list>
#include <optional>
#include <string_view>

// What the ops' autograd kernels have in common.

namespace luna::ops {

inline bool needs_grad(const at::Tensor& x) {
  return x.defined() && x.requires_grad();
}

inline bool any_needs_grad(std::initializer_list<at::Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& x : tensors) {
    if (needs_grad(x)) return true;
  }
  return false;
}

/// For the Autograd kernels of backward ops: none of them is differentiable.
inline void refuse_double_backward(std::string_view op,
                                   std::initializer_list<at::Tensor> inputs) {
  TORCH_CHECK(!any_needs_grad(inputs), op,
              ": double backward is not supported (the gradient of a gradient "
              "was asked for, as by create_graph=True)");
}

/// For the Autograd kernels of step ops: they write their state in place.
inline void refuse_grad_in_step(std::string_view op,
                                std::initializer_list<at::Tensor> inputs) {
  TORCH_CHECK(!any_needs_grad(inputs), op,
              ": a step is for inference and has no gradient; call it under "
              "torch.no_grad(), or use the op without _step");
}

/// Tells autograd that `x` was written in place.
inline void mark_written(const at::Tensor& x) {
  if (!x.is_inference()) x.unsafeGetTensorImpl()->bump_version();
}

/// An optional tensor as autograd::Function takes it: undefined for none.
inline at::Tensor or_undefined(const std::optional<at::Tensor>& x) {
  return x.value_or(at::Tensor());
}

/// And back.
inline std::optional<at::Tensor> or_nullopt(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

}  // namespace luna::ops
