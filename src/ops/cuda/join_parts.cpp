// join_parts on the GPU.

#include "ops/cuda/join_parts.h"

#include <torch/library.h>

#include "ops/cuda/tensors.h"
#include "ops/linear.h"

namespace luna::cuda {
namespace {

using at::Tensor;

Tensor join(at::TensorList parts, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(!parts.empty() && parts.size() <= JoinParts::kMost,
                    "join_parts: expected 1 to ", JoinParts::kMost,
                    " tensors, got ", parts.size());
  TORCH_CHECK_TYPE(dtype == at::kBFloat16 || dtype == at::kHalf,
                   "join_parts: expected bfloat16 or float16, got ", dtype);
  const c10::cuda::CUDAGuard guard(parts[0].device());
  JoinParts args;
  std::vector<Tensor> holders;
  int64_t total = 0;
  for (const Tensor& part : parts) {
    TORCH_CHECK_TYPE(part.scalar_type() == at::kFloat,
                     "join_parts: expected tensors of dtype float32, got ",
                     part.scalar_type());
    holders.push_back(part.contiguous());
    args.from[args.count] = holders.back().const_data_ptr<float>();
    args.numbers[args.count] = part.numel();
    args.at[args.count] = total;
    args.most = std::max(args.most, part.numel());
    ++args.count;
    total += ops::aligned_part(part.numel());
  }
  const Tensor joined = at::empty({total}, parts[0].options().dtype(dtype));
  args.to = joined.mutable_data_ptr();
  args.type = scalar_of(joined);
  join_parts(args, c10::cuda::getCurrentCUDAStream());
  return joined;
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) { m.impl("_join_parts", join); }

}  // namespace
}  // namespace luna::cuda
