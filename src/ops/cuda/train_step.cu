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
    g.lengths[row] = ops::gathered_ids(g, row) + (g.cls >= 0 ? 1 : 0);
  }
  if (column < g.length) {
    g.rows[row * g.length + column] = ops::gathered_id(g, row, column);
  }
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

void judge_step(const JudgeStep& step, cudaStream_t stream) {
  judge_kernel<<<1, 1, 0, stream>>>(step);
  check_launch("judge_step");
}

}  // namespace luna::cuda
