#include "ops/cuda/softmax_wgmma_backward.cuh"

#include "ops/cuda/fused.h"
#include "ops/cuda/softmax_wgmma.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace softmax_wgmma {
namespace {

template <int kChunks, Extras kExtras>
void launch(const BackwardArgs& args, cudaStream_t stream) {
  using Form = BackwardForm<kChunks>;
  const SoftmaxProblem<float>& p = args.a.problem;
  const auto kernel = p.pack ? pack_backward_kernel<kChunks, kExtras>
                             : unpack_backward_kernel<kChunks, kExtras>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(Form::kMemory));
  kernel<<<static_cast<unsigned>(p.tokens.bound * p.heads), Form::kThreads,
           Form::kMemory, stream>>>(args);
  check_launch("softmax_wgmma_backward");
}
template <Extras kExtras>
void run(const BackwardArgs& args, cudaStream_t stream) {
  const int64_t slots = args.a.problem.slots;
  if (slots <= 64) {
    launch<1, kExtras>(args, stream);
  } else if (slots <= 128) {
    launch<2, kExtras>(args, stream);
  } else {
    launch<4, kExtras>(args, stream);
  }
}

constexpr int kDotsBlock = 256;
constexpr int kDotsThreads = kWidth / 8;  // of a row

/// Tokens' deltas: grad_out . out.
__global__ void __launch_bounds__(kDotsBlock)
    dots_kernel(Rows grad, Rows out, int64_t heads, int64_t length, float* dots,
                int64_t rows) {
  const int64_t number =
      (static_cast<int64_t>(blockIdx.x) * kDotsBlock + threadIdx.x) /
      kDotsThreads;
  const int part = threadIdx.x % kDotsThreads;
  float dot = 0.f;
  if (number < rows) {
    const int64_t token = number % length, head = number / length % heads,
                  batch = number / length / heads;
    const auto words = [&](const Rows& of) {
      return *reinterpret_cast<const uint4*>(
          row_pointer<__nv_bfloat16>(of, batch, head, token) + 8 * part);
    };
    const uint4 a = words(grad), b = words(out);
    const auto add = [&](uint32_t x, uint32_t y) {
      dot = fmaf(__uint_as_float(x << 16), __uint_as_float(y << 16), dot);
      dot = fmaf(__uint_as_float(x & 0xffff0000u),
                 __uint_as_float(y & 0xffff0000u), dot);
    };
    add(a.x, b.x);
    add(a.y, b.y);
    add(a.z, b.z);
    add(a.w, b.w);
  }
#pragma unroll
  for (int step = kDotsThreads / 2; step > 0; step /= 2) {
    dot += __shfl_xor_sync(0xffffffffu, dot, step);
  }
  if (part == 0 && number < rows) dots[number] = dot;
}

void find_deltas(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = a.problem;
  const int64_t rows = p.tokens.sequences * p.heads * a.length;
  dots_kernel<<<static_cast<unsigned>(
                    blocks_for(rows, kDotsBlock / kDotsThreads)),
                kDotsBlock, 0, stream>>>(a.y, a.out, p.heads, a.length,
                                         a.rows + rows, rows);
  check_launch("softmax_wgmma_backward, deltas");
}

}  // namespace
}  // namespace softmax_wgmma

bool softmax_wgmma_fits(const SoftmaxMmaBackward& a) {
  const SoftmaxProblem<float>& p = a.problem;
  return p.slots <= ops::kSoftmaxWgmmaBackwardSlots && softmax_wgmma_fits(p) &&
         (p.pack || a.logsumexp != nullptr) &&
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
  if (!p.pack) find_deltas(a, stream);
  with_extras(p, [&]<Extras kExtras>() { run<kExtras>(args, stream); });
}

}  // namespace luna::cuda
