#include <luna/nn/local_sum.h>

#include <ATen/ATen.h>

#include <cmath>

#include "ops/checks.h"
#include "ops/local_sum.h"

namespace luna::nn {

LocalSumImpl::LocalSumImpl(int64_t width, const LocalShape& shape)
    : width_(width), shape_(shape) {
  TORCH_CHECK_VALUE(shape.taps >= 1 && shape.taps % 2 == 1,
                    "LocalSum: expected an odd number of taps, got ",
                    shape.taps);
  LocalSumImpl::reset();
}

void LocalSumImpl::reset() {
  const int64_t rows = shape_.columns > 0 ? shape_.taps : 1;
  const double bound = 1 / std::sqrt(static_cast<double>(rows * shape_.taps));
  weight = register_parameter("weight", at::empty({width_, rows, shape_.taps}));
  at::NoGradGuard no_grad;
  weight.uniform_(-bound, bound);
}

at::Tensor LocalSumImpl::forward(const at::Tensor& x,
                                 const std::optional<at::Tensor>& mask,
                                 const std::optional<at::Tensor>& starts) {
  const auto sums_of = [&](const at::Tensor& values) {
    return ops::local_sum(values, weight.to(ops::compute_dtype(values)),
                          shape_.columns, starts);
  };
  if (!mask) return sums_of(x);
  const auto rows = mask->unsqueeze(-1);
  // What is masked may be anything, NaN too.
  return sums_of(mask->scalar_type() == at::kBool
                     ? at::where(rows, x, at::zeros({}, x.options()))
                     : x * rows.to(x.scalar_type()));
}

}  // namespace luna::nn
