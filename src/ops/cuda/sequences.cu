#include "ops/cuda/sequences.h"

#include "ops/cuda/tile.cuh"

namespace luna::cuda {
namespace {

constexpr int kPlanThreads = 512;

__device__ int64_t offset_of(const SequencePlan& p, int64_t i) {
  const int64_t x = p.is_int64 ? static_cast<const int64_t*>(p.cu_seqlens)[i]
                               : static_cast<const int32_t*>(p.cu_seqlens)[i];
  return x < 0 ? 0 : (x > p.total ? p.total : x);
}

// One block; each thread walks a stretch of the sequences, and thread 0 the
// stretches.
__global__ void plan_kernel(SequencePlan p) {
  __shared__ int64_t shared[kPlanThreads];
  const int64_t count = p.sequences + 1;
  const int64_t stretch = (count + kPlanThreads - 1) / kPlanThreads;
  const int64_t from = threadIdx.x * stretch;
  const int64_t to = from + stretch < count ? from + stretch : count;
  int64_t top = 0;
  for (int64_t i = from; i < to; ++i) {
    const int64_t x = offset_of(p, i);
    if (x > top) top = x;
  }
  shared[threadIdx.x] = top;
  __syncthreads();
  if (threadIdx.x == 0) {
    int64_t running = 0;
    for (int i = 0; i < kPlanThreads; ++i) {
      const int64_t own = shared[i];
      shared[i] = running;
      if (own > running) running = own;
    }
  }
  __syncthreads();
  top = shared[threadIdx.x];
  for (int64_t i = from; i < to; ++i) {
    const int64_t x = offset_of(p, i);
    if (x > top) top = x;
    p.begin[i] = top;
  }
  __syncthreads();
  for (int cut = 0; cut < p.cuts; ++cut) {
    const int64_t size = p.sizes[cut];
    int64_t pieces = 0;
    for (int64_t i = from; i < to && i < p.sequences; ++i) {
      pieces += (p.begin[i + 1] - p.begin[i] + size - 1) / size;
    }
    shared[threadIdx.x] = pieces;
    __syncthreads();
    if (threadIdx.x == 0) {
      int64_t running = 0;
      for (int i = 0; i < kPlanThreads; ++i) {
        const int64_t own = shared[i];
        shared[i] = running;
        running += own;
      }
    }
    __syncthreads();
    int64_t running = shared[threadIdx.x];
    for (int64_t i = from; i < to; ++i) {
      p.firsts[cut][i] = running;
      if (i < p.sequences) {
        running += (p.begin[i + 1] - p.begin[i] + size - 1) / size;
      }
    }
    __syncthreads();
  }
}

}  // namespace

void plan_sequences(const SequencePlan& plan, cudaStream_t stream) {
  plan_kernel<<<1, kPlanThreads, 0, stream>>>(plan);
  check_launch("plan_sequences");
}

}  // namespace luna::cuda
