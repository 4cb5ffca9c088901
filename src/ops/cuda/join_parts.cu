#include "ops/cuda/join_parts.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/launch.h"

namespace luna::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void join_kernel(JoinParts p) {
  const int part = blockIdx.y;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < p.numbers[part]; i += stride) {
    const float x = p.from[part][i];
    const int64_t to = p.at[part] + i;
    if (p.type == Scalar::kBFloat16) {
      static_cast<__nv_bfloat16*>(p.to)[to] = __float2bfloat16_rn(x);
    } else {
      static_cast<__half*>(p.to)[to] = __float2half_rn(x);
    }
  }
}

}  // namespace

void join_parts(const JoinParts& p, cudaStream_t stream) {
  if (p.count == 0 || p.most == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>((p.most + kThreads - 1) / kThreads, 1024));
  join_kernel<<<dim3(blocks, static_cast<unsigned>(p.count)), kThreads, 0,
                stream>>>(p);
  check_launch("join_parts");
}

}  // namespace luna::cuda
