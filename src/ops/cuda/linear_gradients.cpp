// The gradients of linear's weight and bias on the GPU.

#include "ops/cuda/linear_gradients.h"

#include <torch/library.h>

#include "ops/cuda/aligned.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;

Tensor sums_of_columns(const Tensor& x, cudaStream_t stream) {
  const int64_t rows = x.size(0), width = x.size(1);
  if (width % 2 != 0 || width > 512 || rows < 64 ||
      x.scalar_type() == at::kDouble) {
    return x.sum(0, false, at::kFloat);
  }
  const Tensor partials =
      at::empty({column_blocks(rows), width}, x.options().dtype(at::kFloat));
  column_sums(x.const_data_ptr(), scalar_of(x), rows, width,
              partials.mutable_data_ptr<float>(), stream);
  const Tensor total = at::empty({width}, partials.options());
  sum_parts(partials.const_data_ptr<float>(), partials.size(0), width,
            total.mutable_data_ptr<float>(), stream);
  return total;
}

std::tuple<Tensor, Tensor> gradients(const Tensor& up_, const Tensor& x_) {
  TORCH_CHECK_VALUE(up_.dim() == 2 && x_.dim() == 2 &&
                        up_.size(0) == x_.size(0) &&
                        up_.scalar_type() == x_.scalar_type(),
                    "linear_gradients: expected up [rows, out] and x [rows, "
                    "in] of one dtype, got ",
                    up_.sizes(), " and ", x_.sizes());
  const c10::cuda::CUDAGuard guard(x_.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const Tensor up = aligned(up_), x = aligned(x_);
  const int64_t rows = x.size(0), out = up.size(1), in = x.size(1);
  const int64_t pieces = linear_gradient_pieces(rows, out, in);
  if (x.scalar_type() != at::kBFloat16 || pieces == 0) {
    const bool low =
        x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
    return {low ? at::mm(up.t(), x, at::kFloat) : at::mm(up.t(), x),
            sums_of_columns(up, stream)};
  }
  const auto options = x.options().dtype(at::kFloat);
  const Tensor partials = at::empty({pieces, out * in + out}, options);
  linear_gradients({up.const_data_ptr(), x.const_data_ptr(), rows, out, in,
                    pieces, partials.mutable_data_ptr<float>()},
                   stream);
  const Tensor total = at::empty({out * in + out}, options);
  sum_parts(partials.const_data_ptr<float>(), pieces, total.numel(),
            total.mutable_data_ptr<float>(), stream);
  return {total.narrow(0, 0, out * in).view({out, in}),
          total.narrow(0, out * in, out)};
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) { m.impl("_linear_gradients", gradients); }

}  // namespace
}  // namespace luna::cuda
