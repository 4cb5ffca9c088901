#include "ops/cuda/softmax_wgmma_backward.cuh"

#include "ops/cuda/fused.h"
#include "ops/cuda/softmax_wgmma.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace softmax_wgmma {
namespace {

template <int kChunks>
void run(const BackwardArgs& args, cudaStream_t stream) {
  using Form = BackwardForm<kChunks>;
  const SoftmaxProblem<float>& p = args.a.problem;
  const auto kernel =
      p.pack ? pack_backward_kernel<kChunks> : unpack_backward_kernel<kChunks>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(Form::kMemory));
  kernel<<<static_cast<unsigned>(p.tokens.bound * p.heads), Form::kThreads,
           Form::kMemory, stream>>>(args);
  check_launch("softmax_wgmma_backward");
}

void find_rows(const BackwardArgs& args, cudaStream_t stream) {
  using Form = RowsForm;
  const SoftmaxProblem<float>& p = args.a.problem;
  const int tiles = static_cast<int>((p.slots + kRows - 1) / kRows);
  const auto kernel = unpack_rows_kernel;
  const size_t memory = Form::memory(tiles);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  kernel<<<static_cast<unsigned>(p.tokens.bound * p.heads), Form::kThreads,
           memory, stream>>>(args, tiles);
  check_launch("softmax_wgmma_backward, rows");
}

}  // namespace
}  // namespace softmax_wgmma

bool softmax_wgmma_fits(const SoftmaxMmaBackward& a) {
  const SoftmaxProblem<float>& p = a.problem;
  return p.slots <= ops::kSoftmaxWgmmaBackwardSlots && softmax_wgmma_fits(p) &&
         softmax_wgmma::has_strides(p.pack ? a.z : a.y, p.tokens.sequences,
                                    p.heads,
                                    p.pack ? p.slots : p.tokens.length);
}

void softmax_wgmma_backward(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  using namespace softmax_wgmma;
  const SoftmaxProblem<float>& p = a.problem;
  if (p.tokens.bound == 0) return;
  const int64_t batch = p.tokens.sequences;
  BackwardArgs args = {};
  args.x = fused_rows(a.x, batch, p.heads, p.tokens.length);
  args.y = fused_rows(a.y, batch, p.heads, p.tokens.length);
  args.p =
      fused_rows(a.p, p.pack && p.shared_slots ? 1 : batch, p.heads, p.slots);
  args.z = fused_rows(a.z, batch, p.heads, p.slots);
  args.a = a;
  if (!p.pack) find_rows(args, stream);
  if (p.slots <= 64) {
    run<1>(args, stream);
  } else if (p.slots <= 128) {
    run<2>(args, stream);
  } else {
    run<4>(args, stream);
  }
}

}  // namespace luna::cuda
