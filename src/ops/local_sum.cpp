#include "ops/local_sum.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/dispatch.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Signature = Tensor(const Tensor&, const Tensor&, int64_t,
                         const OptionalTensor&);
using WeightSignature = Tensor(const Tensor&, const Tensor&, const Tensor&,
                               int64_t, const OptionalTensor&);

constexpr std::string_view kName = "local_sum";

Tensor weight_backward(const Tensor& grad, const Tensor& x,
                       const Tensor& weight, int64_t columns,
                       const OptionalTensor& starts) {
  static const auto op =
      find_op<WeightSignature>("luna::_local_sum_weight_backward");
  return op.call(grad, x, weight, columns, starts);
}

class LocalSumFunction : public torch::autograd::Function<LocalSumFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const Tensor& weight, int64_t columns,
                        const OptionalTensor& starts) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight, or_undefined(starts)});
    ctx->saved_data["columns"] = columns;
    return local_sum(x, weight, columns, starts);
  }

  /// A token is heard by those that it hears, by the opposite tap.
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const int64_t columns = ctx->saved_data["columns"].toInt();
    const auto starts = or_nullopt(saved[2]);
    Tensor of_x, of_weight;
    if (ctx->needs_input_grad(0)) {
      of_x = local_sum(grads[0], weight.flip({1, 2}), columns, starts);
    }
    if (ctx->needs_input_grad(1)) {
      of_weight = weight_backward(grads[0], x, weight, columns, starts);
    }
    return {of_x, of_weight, Tensor(), Tensor()};
  }
};

Tensor local_sum_autograd(const Tensor& x, const Tensor& weight,
                          int64_t columns, const OptionalTensor& starts) {
  if (any_needs_grad({x, weight})) {
    return LocalSumFunction::apply(x, weight, columns, starts);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return local_sum(x, weight, columns, starts);
}

Tensor weight_backward_autograd(const Tensor& grad, const Tensor& x,
                                const Tensor& weight, int64_t columns,
                                const OptionalTensor& starts) {
  refuse_double_backward(kName, {grad, x, weight});
  at::AutoDispatchBelowADInplaceOrView below;
  return weight_backward(grad, x, weight, columns, starts);
}

Tensor local_sum_meta(const Tensor& x, const Tensor& weight, int64_t columns,
                      const OptionalTensor& starts) {
  check_local_sum(x, weight, columns, starts);
  return at::empty_symint(x.sym_sizes(), x.options());
}

Tensor weight_backward_meta(const Tensor&, const Tensor&, const Tensor& weight,
                            int64_t, const OptionalTensor&) {
  return at::empty_symint(weight.sym_sizes(), weight.options());
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "_local_sum(Tensor x, Tensor weight, int columns, Tensor? starts) -> "
      "Tensor",
      tags);
  m.def(
      "_local_sum_weight_backward(Tensor grad, Tensor x, Tensor weight, "
      "int columns, Tensor? starts) -> Tensor",
      tags);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_local_sum", local_sum_meta);
  m.impl("_local_sum_weight_backward", weight_backward_meta);
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("_local_sum", local_sum_autograd);
  m.impl("_local_sum_weight_backward", weight_backward_autograd);
}

}  // namespace

void check_local_sum(const Tensor& x, const Tensor& weight, int64_t columns,
                     const OptionalTensor& starts) {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.is_floating_point(), kName,
                    ": expected x [batch, length, width] of a floating dtype, "
                    "got ",
                    x.sym_sizes(), " ", x.scalar_type());
  TORCH_CHECK_VALUE(weight.dim() == 3 && weight.sym_size(0) == x.sym_size(2) &&
                        weight.size(1) % 2 == 1 && weight.size(2) % 2 == 1,
                    kName, ": expected weight [", x.sym_size(2),
                    ", rows, taps], both odd, got ", weight.sym_sizes());
  TORCH_CHECK_TYPE(weight.scalar_type() == compute_dtype(x), kName,
                   ": expected weight of dtype ", compute_dtype(x), ", got ",
                   weight.scalar_type());
  check_same_device(kName, "weight", weight, "x", x);
  TORCH_CHECK_VALUE(columns >= 0, kName, ": expected columns >= 0, got ",
                    columns);
  TORCH_CHECK_VALUE(columns > 0 || weight.size(1) == 1, kName,
                    ": expected one row of taps without columns, got ",
                    weight.size(1));
  TORCH_CHECK_VALUE(columns == 0 || !starts, kName,
                    ": expected columns or starts, got both");
  TORCH_CHECK_VALUE(columns == 0 || x.sym_size(1) % columns == 0, kName,
                    ": expected a length that is a multiple of ", columns,
                    " columns, got ", x.sym_size(1));
  if (!starts) return;
  check_cu_seqlens(kName, "starts", *starts, "x", x);
  TORCH_CHECK_VALUE(starts->sym_size(0) >= 2, kName,
                    ": expected starts of one sequence or more, got ",
                    starts->sym_sizes());
}

Tensor local_sum(const Tensor& x, const Tensor& weight, int64_t columns,
                 const OptionalTensor& starts) {
  static const auto op = find_op<Signature>("luna::_local_sum");
  return op.call(x, weight, columns, starts);
}

}  // namespace luna::ops
