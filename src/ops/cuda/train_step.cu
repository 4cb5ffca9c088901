#include "ops/cuda/train_step.h"

#include "ops/cuda/launch.h"

namespace luna::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void gather_kernel(ops::Gather g) {
  const int64_t column =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (column == 0) {
    g.lengths[row] = ops::gathered_length(g, row);
  }
  if (column < g.length) {
    g.rows[row * g.length + column] = ops::gathered_id(g, row, column);
  }
}

// Every block adds the few lengths up for itself.
__global__ void packed_kernel(ops::Gather g) {
  extern __shared__ int64_t starts[];  // [batch + 2]
  for (int64_t i = threadIdx.x; i < g.batch; i += kThreads) {
    starts[i + 1] = ops::gathered_length(g, i);
    if (blockIdx.x == 0) g.lengths[i] = starts[i + 1];
  }
  __syncthreads();
  if (threadIdx.x == 0) ops::add_up_starts(g, starts);
  __syncthreads();
  if (blockIdx.x == 0) {
    for (int64_t i = threadIdx.x; i < g.batch + 2; i += kThreads) {
      g.starts[i] = starts[i];
    }
  }
  const int64_t token =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token < g.length) g.rows[token] = ops::packed_id(g, starts, token);
}

__global__ void judge_kernel(JudgeStep s) {
  ops::judge(s.meter, {*s.loss, *s.norm, *s.correct}, s.rules, s.verdict);
}

}  // namespace

void gather_sequences(const ops::Gather& g, cudaStream_t stream) {
  if (g.batch == 0) return;
  const dim3 grid(static_cast<unsigned>((g.length + kThreads - 1) / kThreads),
                  static_cast<unsigned>(g.batch));
  gather_kernel<<<grid, kThreads, 0, stream>>>(g);
  check_launch("gather_sequences");
}

void gather_packed(const ops::Gather& g, cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(g.batch + 2) * sizeof(int64_t);
  packed_kernel<<<static_cast<unsigned>((g.length + kThreads - 1) / kThreads),
                  kThreads, bytes, stream>>>(g);
  check_launch("gather_packed");
}

void judge_step(const JudgeStep& step, cudaStream_t stream) {
  judge_kernel<<<1, 1, 0, stream>>>(step);
  check_launch("judge_step");
}

}  // namespace luna::cuda
