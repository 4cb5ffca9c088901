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
    static const auto op =
        find_op<WeightSignature>("luna::_local_sum_weight_backward");
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const int64_t columns = ctx->saved_data["columns"].toInt();
    const auto starts = or_nullopt(saved[2]);
    Tensor of_x, of_weight;
    if (ctx->needs_input_grad(0)) {
      of_x = local_sum(grads[0], weight.flip({1, 2}), columns, starts);
    }
    if (ctx->needs_input_grad(1)) {
      of_weight = op.call(grads[0], x, weight, columns, starts);
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

/// Each token's place in its sequence, and that one's length: [B n] int64.
std::pair<Tensor, Tensor> places_and_lengths(const Tensor& x,
                                             const OptionalTensor& starts) {
  const auto options = x.options().dtype(at::kLong);
  const int64_t n = x.size(1);
  if (!starts) {
    return {at::arange(n, options).repeat({x.size(0)}),
            at::full({x.size(0) * n}, n, options)};
  }
  check_cu_seqlens_values(kName, "starts", *starts, n);
  const Tensor edges = starts->to(at::kLong), token = at::arange(n, options);
  const Tensor sequence =
      at::searchsorted(edges, token, /*out_int32=*/false, /*right=*/true) - 1;
  return {token - edges.index_select(0, sequence),
          edges.diff().index_select(0, sequence)};
}

/// Calls body(i, j, rows) for every tap: the neighbours' rows of x [B n,D] in
/// the dtype of sums, 0 where there is none.
template <typename Body>
void for_each_tap(const Tensor& x, at::IntArrayRef taps, int64_t columns,
                  const OptionalTensor& starts, const Body& body) {
  const Tensor rows = x.to(compute_dtype(x)).flatten(0, 1);
  const auto [place, length] = places_and_lengths(x, starts);
  const Tensor column = columns > 0 ? place.remainder(columns) : place;
  const Tensor width = columns > 0 ? at::full_like(length, columns) : length;
  const Tensor token = at::arange(rows.size(0), place.options());
  for (int64_t i = 0; i < taps[0]; ++i) {
    for (int64_t j = 0; j < taps[1]; ++j) {
      const int64_t right = j - taps[1] / 2;
      const int64_t away = (i - taps[0] / 2) * columns + right;
      const auto inside = [](const Tensor& at, const Tensor& end) {
        return at.ge(0).logical_and(at.lt(end));
      };
      const Tensor there = inside(place + away, length)
                               .logical_and(inside(column + right, width));
      const Tensor from = at::where(there, token + away, 0);
      body(i, j,
           rows.index_select(0, from) *
               there.unsqueeze(1).to(rows.scalar_type()));
    }
  }
}

Tensor local_sum_cpu(const Tensor& x, const Tensor& weight, int64_t columns,
                     const OptionalTensor& starts) {
  check_local_sum(x, weight, columns, starts);
  Tensor sum = at::zeros({x.size(0) * x.size(1), x.size(2)},
                         x.options().dtype(compute_dtype(x)));
  if (x.numel() == 0) return at::empty_like(x);
  for_each_tap(x, weight.sizes().slice(1), columns, starts,
               [&](int64_t i, int64_t j, const Tensor& rows) {
                 sum.addcmul_(rows, weight.select(1, i).select(1, j));
               });
  return sum.view(x.sizes()).to(x.scalar_type());
}

Tensor weight_backward_cpu(const Tensor& grad, const Tensor& x,
                           const Tensor& weight, int64_t columns,
                           const OptionalTensor& starts) {
  check_local_sum(x, weight, columns, starts);
  const Tensor sums = at::zeros_like(weight);
  if (x.numel() == 0) return sums;
  const Tensor up = grad.to(compute_dtype(x)).flatten(0, 1);
  for_each_tap(x, weight.sizes().slice(1), columns, starts,
               [&](int64_t i, int64_t j, const Tensor& rows) {
                 sums.select(1, i).select(1, j).copy_((rows * up).sum(0));
               });
  return sums;
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

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_local_sum", local_sum_cpu);
  m.impl("_local_sum_weight_backward", weight_backward_cpu);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_local_sum", local_sum_meta);
  m.impl("_local_sum_weight_backward", weight_backward_meta);
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("_local_sum", local_sum_autograd);
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
  if (starts) check_cu_seqlens(kName, "starts", *starts, "x", x);
}

Tensor local_sum(const Tensor& x, const Tensor& weight, int64_t columns,
                 const OptionalTensor& starts) {
  static const auto op = find_op<Signature>("luna::_local_sum");
  return op.call(x, weight, columns, starts);
}

}  // namespace luna::ops
