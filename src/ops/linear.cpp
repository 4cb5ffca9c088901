#include "ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "ops/autograd.h"
#include "ops/dispatch.h"

namespace luna::ops {
namespace {

using at::Tensor;

/// Tensors [...,width] side by side, [rows, all widths]: a view where they lie
/// so in memory, as gradients of linears' outputs may.
Tensor side_by_side(const std::vector<Tensor>& parts) {
  int64_t total = 0;
  for (const Tensor& part : parts) total += part.size(-1);
  const Tensor& first = parts[0];
  const bool in_rows =
      first.stride(-1) == 1 && first.dim() >= 2 && first.stride(-2) == total;
  bool beside = in_rows && first.numel() > 0;
  for (int64_t d = first.dim() - 3; beside && d >= 0; --d) {
    beside = first.stride(d) == first.stride(d + 1) * first.size(d + 1);
  }
  int64_t offset = first.storage_offset();
  for (const Tensor& part : parts) {
    beside = beside && part.is_alias_of(first) &&
             part.strides() == first.strides() &&
             part.storage_offset() == offset;
    offset += part.size(-1);
  }
  if (!beside) return at::cat(parts, -1).reshape({-1, total});
  return first.as_strided({first.numel() / first.size(-1), total}, {total, 1},
                          first.storage_offset());
}

/// Whether the kernels for rows of 64 numbers take these: on a GPU, at most
/// three times 64 numbers come out.
bool is_narrow(const Tensor& x, at::TensorList weights, at::ScalarType dtype) {
  constexpr int64_t kWidth = 64, kMost = 3 * kWidth;
  int64_t out = 0;
  for (const Tensor& weight : weights) {
    if (weight.size(0) % kWidth != 0 || weight.size(1) != kWidth) return false;
    out += weight.size(0);
  }
  return x.is_cuda() && dtype == at::kBFloat16 && out > 0 && out <= kMost;
}

Tensor narrow_linear(const Tensor& x, at::TensorList weights,
                     at::TensorList biases) {
  static const auto op =
      find_op<Tensor(const Tensor&, at::TensorList, at::TensorList)>(
          "luna::_narrow_linear");
  return op.call(x, weights, biases);
}

/// The gradients of x, where it is wanted, and of all weights and then all
/// biases, one after the other.
std::tuple<Tensor, Tensor> narrow_linear_backward(const Tensor& up,
                                                  const Tensor& x,
                                                  at::TensorList weights,
                                                  bool x_needs_grad) {
  static const auto op = find_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, at::TensorList, bool)>(
      "luna::_narrow_linear_backward");
  return op.call(up, x, weights, x_needs_grad);
}

/// Without autocast and autograd: both are done here. Weights and biases in
/// one list, the weights first. A layer whose output nobody reads has no
/// gradient, as if it had been called alone.
class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* ctx, const Tensor& x,
      at::TensorList parameters, at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const auto weights = parameters.slice(0, parameters.size() / 2);
    const auto biases = parameters.slice(parameters.size() / 2);
    const int64_t in = x.size(-1);
    std::vector<int64_t> widths;
    for (const Tensor& bias : biases) widths.push_back(bias.size(0));
    const Tensor low = x.to(dtype);
    ctx->saved_data["widths"] = widths;
    ctx->saved_data["x_dtype"] = x.scalar_type();
    ctx->saved_data["x_needs_grad"] = needs_grad(x);
    torch::autograd::variable_list saved = {low};
    Tensor out;
    if (is_narrow(x, weights, dtype)) {
      saved.insert(saved.end(), weights.begin(), weights.end());
      out = narrow_linear(low, weights, biases);
    } else {
      const auto [w, b] = joined(weights, biases, in, dtype);
      saved.push_back(w);
      out = at::linear(low, w, b);
    }
    ctx->save_for_backward(saved);
    ctx->set_materialize_grads(false);
    return widths.size() == 1 ? torch::autograd::variable_list{out}
                              : out.split_with_sizes(widths, -1);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    const auto s = ctx->get_saved_variables();
    const Tensor& x = s[0];
    const auto weights = at::TensorList(s).slice(1);
    const auto widths = ctx->saved_data["widths"].toIntVector();
    const int64_t in = x.size(-1);
    const int64_t out =
        std::accumulate(widths.begin(), widths.end(), int64_t{});
    torch::autograd::variable_list result(1 + 2 * widths.size() + 1);
    const std::vector<bool> read = fill_undefined(grads, x, widths);
    if (std::ranges::find(read, true) == read.end()) return result;
    const Tensor up = grads.size() == 1
                          ? grads[0].reshape({-1, out}).contiguous()
                          : side_by_side(grads);
    const bool x_needs_grad = ctx->saved_data["x_needs_grad"].toBool();
    const auto x_dtype = ctx->saved_data["x_dtype"].toScalarType();
    Tensor grad_x, weight, bias;
    if (is_narrow(x, weights, x.scalar_type())) {
      Tensor all;
      std::tie(grad_x, all) =
          narrow_linear_backward(up, x, weights, x_needs_grad);
      weight = all.narrow(0, 0, out * in).view({out, in});
      bias = all.narrow(0, out * in, out);
    } else {
      const Tensor& w = weights[0];
      if (x_needs_grad) {
        // In x's dtype at once: no rounding, and no pass over memory for it.
        grad_x = (up.is_cuda() && x_dtype == at::kFloat ? at::mm(up, w, x_dtype)
                                                        : at::mm(up, w))
                     .view(x.sizes());
      }
      std::tie(weight, bias) = linear_gradients(up, x.reshape({-1, in}));
    }
    if (x_needs_grad) result[0] = grad_x.to(x_dtype);
    int64_t row = 0;
    for (size_t i = 0; i < widths.size(); ++i) {
      if (read[i]) {
        result[1 + i] = weight.narrow(0, row, widths[i]);
        result[1 + widths.size() + i] = bias.narrow(0, row, widths[i]);
      }
      row += widths[i];
    }
    return result;
  }

 private:
  /// Puts zeros where an output has no gradient; which of them had one.
  static std::vector<bool> fill_undefined(torch::autograd::variable_list& grads,
                                          const Tensor& x,
                                          const std::vector<int64_t>& widths) {
    std::vector<bool> defined;
    std::vector<int64_t> sizes = x.sizes().vec();
    for (size_t i = 0; i < grads.size(); ++i) {
      defined.push_back(grads[i].defined());
      sizes.back() = widths[i];
      if (!defined[i]) grads[i] = at::zeros(sizes, x.options());
    }
    return defined;
  }

  /// All weights as one [out,in] and all biases as one [out].
  static std::pair<Tensor, Tensor> joined(at::TensorList weights,
                                          at::TensorList biases, int64_t in,
                                          at::ScalarType dtype) {
    int64_t out = 0;
    bool whole = true;  // nothing between the parts
    for (const Tensor& bias : biases) {
      whole = whole && bias.size(0) % kPartAlignment == 0;
      out += bias.size(0);
    }
    if (!whole && weights.size() > 1) {
      return {at::cat(weights).to(dtype), at::cat(biases).to(dtype)};
    }
    std::vector<Tensor> parts(weights.begin(), weights.end());
    parts.insert(parts.end(), biases.begin(), biases.end());
    const Tensor all = join_parts(parts, dtype);
    return {all.narrow(0, 0, out * in).view({out, in}),
            all.narrow(0, aligned_part(out * in), out)};
  }
};

using Gradients = std::tuple<Tensor, Tensor>;

Gradients gradients_cpu(const Tensor& up, const Tensor& x) {
  const Tensor rows = up.to(at::kFloat);
  return {at::mm(rows.t(), x.to(at::kFloat)), rows.sum(0)};
}

Tensor join_cpu(at::TensorList parts, at::ScalarType dtype) {
  std::vector<Tensor> all;
  for (const Tensor& part : parts) {
    all.push_back(at::constant_pad_nd(
        part.flatten(), {0, aligned_part(part.numel()) - part.numel()}));
  }
  return at::cat(all).to(dtype);
}

Tensor join_meta(at::TensorList parts, at::ScalarType dtype) {
  int64_t total = 0;
  for (const Tensor& part : parts) total += aligned_part(part.numel());
  return at::empty({total}, parts[0].options().dtype(dtype));
}

Gradients gradients_meta(const Tensor& up, const Tensor& x) {
  const auto options = x.options().dtype(at::kFloat);
  return {at::empty_symint({up.sym_size(1), x.sym_size(1)}, options),
          at::empty_symint({up.sym_size(1)}, options)};
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def("_linear_gradients(Tensor up, Tensor x) -> (Tensor, Tensor)",
        {at::Tag::pt2_compliant_tag});
  m.def("_join_parts(Tensor[] parts, ScalarType dtype) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "_narrow_linear(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor");
  m.def(
      "_narrow_linear_backward(Tensor grad, Tensor x, Tensor[] weights, "
      "bool x_needs_grad) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_linear_gradients", gradients_cpu);
  m.impl("_join_parts", join_cpu);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_linear_gradients", gradients_meta);
  m.impl("_join_parts", join_meta);
}

}  // namespace

Gradients linear_gradients(const Tensor& up, const Tensor& x) {
  static const auto op = find_op<Gradients(const Tensor&, const Tensor&)>(
      "luna::_linear_gradients");
  return op.call(up, x);
}

Tensor join_parts(at::TensorList parts, at::ScalarType dtype) {
  static const auto op =
      find_op<Tensor(at::TensorList, at::ScalarType)>("luna::_join_parts");
  return op.call(parts, dtype);
}

std::vector<Tensor> joint_linears(const Tensor& x, at::TensorList weights,
                                  at::TensorList biases, at::ScalarType dtype) {
  std::vector<Tensor> parameters(weights.begin(), weights.end());
  parameters.insert(parameters.end(), biases.begin(), biases.end());
  return LinearFunction::apply(x, at::TensorList(parameters), dtype);
}

std::vector<Tensor> linears(const Tensor& x, at::TensorList weights,
                            at::TensorList biases) {
  bool low = x.is_cuda() && at::autocast::is_autocast_enabled(at::kCUDA);
  bool grad = any_needs_grad({x});
  for (const at::TensorList& list : {weights, biases}) {
    for (const Tensor& parameter : list) {
      low = low && parameter.scalar_type() == at::kFloat;
      grad = grad || any_needs_grad({parameter});
    }
  }
  if (low && grad) {
    return joint_linears(x, weights, biases,
                         at::autocast::get_autocast_dtype(at::kCUDA));
  }
  // A joint gradient would hold zeros for layers whose output nobody reads.
  if (x.is_cuda() && !grad && weights.size() > 1) {
    std::vector<int64_t> widths;
    for (const Tensor& weight : weights) widths.push_back(weight.size(0));
    return at::linear(x, at::cat(weights), at::cat(biases))
        .split_with_sizes(widths, -1);
  }
  std::vector<Tensor> all;
  for (size_t i = 0; i < weights.size(); ++i) {
    all.push_back(at::linear(x, weights[i], biases[i]));
  }
  return all;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!bias.defined()) return at::linear(x, weight);
  return linears(x, weight, bias)[0];
}

}  // namespace luna::ops
