#include "ops/cuda/softmax_wgmma_backward.cuh"

#include "ops/cuda/softmax_wgmma.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace softmax_wgmma {
namespace {

constexpr int kDotsBlock = 256;
constexpr int kDotsThreads = kWidth / 8;  // of a row

/// Tokens' deltas: grad_out . out.
__global__ void __launch_bounds__(kDotsBlock)
    dots_kernel(Rows grad, Rows out, int width, int64_t heads, int64_t length,
                float* dots, int64_t rows) {
  const int64_t number =
      (static_cast<int64_t>(blockIdx.x) * kDotsBlock + threadIdx.x) /
      kDotsThreads;
  const int part = threadIdx.x % kDotsThreads;
  float dot = 0.f;
  if (number < rows && 8 * part < width) {
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
  const int64_t rows = tokens_of(p).batch * p.heads * a.length;
  dots_kernel<<<static_cast<unsigned>(
                    blocks_for(rows, kDotsBlock / kDotsThreads)),
                kDotsBlock, 0, stream>>>(a.y, a.out, static_cast<int>(p.width),
                                         p.heads, a.length, a.rows + rows,
                                         rows);
  check_launch("softmax_wgmma_backward, deltas");
}

}  // namespace
}  // namespace softmax_wgmma

bool softmax_wgmma_fits(const SoftmaxMmaBackward& a) {
  using namespace softmax_wgmma;
  const SoftmaxProblem<float>& p = a.problem;
  return p.slots <= ops::kSoftmaxWgmmaBackwardSlots && softmax_wgmma_fits(p) &&
         (p.pack ? has_strides(a.z, slots_of(p), p.heads)
                 : a.logsumexp != nullptr &&
                       has_strides(a.y, tokens_of(p), p.heads));
}

void softmax_wgmma_backward(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  using namespace softmax_wgmma;
  const SoftmaxProblem<float>& p = a.problem;
  if (p.tokens.length == 0) return;
  const Side tokens = tokens_of(p), slots = slots_of(p);
  BackwardArgs args = {};
  args.x = map_of(a.x, tokens, p.heads, p.depth);
  args.y = map_of(a.y, tokens, p.heads, p.width);
  args.p = map_of(a.p, p.pack && p.shared_slots ? shared(slots) : slots,
                  p.heads, p.depth);
  args.z = map_of(a.z, slots, p.heads, p.width);
  args.a = a;
  if (!p.pack) find_deltas(a, stream);
  if (p.tokens.begin == nullptr) {
    launch_backward<false>(args, stream);
  } else {
    launch_backward<true>(args, stream);
  }
}

}  // namespace luna::cuda
