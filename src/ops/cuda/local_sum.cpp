// local_sum on the GPU.

#include "ops/local_sum.h"

#include <torch/library.h>

#include "ops/cuda/aligned.h"
#include "ops/cuda/local_sum.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// x itself where its tokens lie as many numbers apart throughout, and pairs of
/// channels may be read at once.
Tensor even_tokens(const Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  const bool even = x.stride(2) == 1 && x.stride(1) >= x.size(2) &&
                    x.stride(0) == x.size(1) * x.stride(1) &&
                    address % (2 * x.element_size()) == 0;
  return even ? x : x.clone(at::MemoryFormat::Contiguous);
}

/// What forward and backward read.
LocalSum arguments(const Tensor& x, const Tensor& weight, int64_t columns,
                   const Sequences& sequences) {
  LocalSum args;
  args.count = x.size(0) * x.size(1);
  args.length = x.size(1);
  args.width = x.size(2);
  args.stride = x.stride(1);
  args.rows = static_cast<int>(weight.size(1));
  args.taps = static_cast<int>(weight.size(2));
  args.columns = columns;
  args.starts = sequences.cut(0).begin;
  args.sequences = sequences.count();
  args.type = scalar_of(x);
  args.x = x.const_data_ptr();
  return args;
}

Tensor forward(const Tensor& x_, const Tensor& weight, int64_t columns,
               const OptionalTensor& starts) {
  ops::check_local_sum(x_, weight, columns, starts);
  const c10::cuda::CUDAGuard guard(x_.device());
  const Tensor x = even_tokens(x_);
  const Tensor out = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return out;
  const Sequences sequences(x, starts, x.size(0), x.size(1), {1});
  LocalSum args = arguments(x, weight, columns, sequences);
  const Tensor by_tap = weight.permute({1, 2, 0}).contiguous();
  args.weight = by_tap.const_data_ptr();
  args.out = out.mutable_data_ptr();
  local_sum_forward(args, c10::cuda::getCurrentCUDAStream());
  return out;
}

Tensor weight_backward(const Tensor& grad_, const Tensor& x_,
                       const Tensor& weight, int64_t columns,
                       const OptionalTensor& starts) {
  ops::check_local_sum(x_, weight, columns, starts);
  const c10::cuda::CUDAGuard guard(x_.device());
  const Tensor x = even_tokens(x_);
  const Tensor grad = aligned(grad_.to(x.scalar_type()));
  if (x.numel() == 0) return at::zeros_like(weight);
  const Sequences sequences(x, starts, x.size(0), x.size(1), {1});
  LocalSum args = arguments(x, weight, columns, sequences);
  const Tensor partials = at::empty(
      {local_sum_parts(args), weight.size(1), weight.size(2), weight.size(0)},
      weight.options());
  args.grad = grad.const_data_ptr();
  args.partials = partials.mutable_data_ptr();
  local_sum_weight_backward(args, c10::cuda::getCurrentCUDAStream());
  return partials.sum(0).permute({2, 0, 1}).contiguous();
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_local_sum", forward);
  m.impl("_local_sum_weight_backward", weight_backward);
}

}  // namespace
}  // namespace luna::cuda
