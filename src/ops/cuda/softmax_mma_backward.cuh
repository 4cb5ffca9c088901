#pragma once

#include "ops/cuda/softmax_mma.cuh"

// What the backward kernels of softmax_mma.h share.

namespace luna::cuda::softmax_mma {

void few_slots_backward(const SoftmaxMmaBackward& args, cudaStream_t stream);
void tokens_backward(const SoftmaxMmaBackward& args, cudaStream_t stream);
void slots_backward(const SoftmaxMmaBackward& args, cudaStream_t stream);

/// A head's key weights: of the piece's tokens, or of the slots.
template <bool kPack>
__device__ __forceinline__ const float* weights_of(
    const SoftmaxProblem<float>& p, const Piece& piece, int64_t head) {
  if (p.weight.data == nullptr) return nullptr;
  return p.weight.data +
         (kPack ? piece.batch : piece.sequence) * p.weight.batch +
         head * p.weight.head + (kPack ? piece.begin + piece.offset : 0);
}

/// Pack: slots' maxima, inverse sums and deltas, `rows` numbers each, by a
/// whole block; inverses of 0 beyond the last slot.
template <typename T>
__device__ __forceinline__ void load_stats(const SoftmaxMmaBackward& a,
                                           int64_t sequence, int64_t head,
                                           int64_t first, int rows,
                                           float* stats) {
  const SoftmaxProblem<float>& p = a.problem;
  const int part = threadIdx.x % 16;
  for (int i = threadIdx.x / 16; i < rows; i += kBlock / 16) {
    const int64_t slot = first + i;
    const bool valid = slot < p.slots;
    const int64_t at = (sequence * p.heads + head) * p.slots + slot;
    float delta = 0.f;
    if (valid) {
      const T* z = row_pointer<T>(a.z, sequence, head, slot);
      for (int n = part; n < p.width; n += 16) {
        delta = fmaf(mma::to_float(z[n]), a.output[at * p.width + n], delta);
      }
    }
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {
      delta += __shfl_xor_sync(0xffffffffu, delta, step);
    }
    if (part == 0) {
      stats[i] = valid ? a.max[at] : 0.f;
      stats[rows + i] = valid ? a.inverse[at] : 0.f;
      stats[2 * rows + i] = delta;
    }
  }
}

/// A warp's sums, 16 M rows, to rows of D numbers.
template <int D, int M>
__device__ __forceinline__ void put_sums(float* to, const Sum* sum,
                                         float gain) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int c = 0; c < D / 8; ++c) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Sum& x = sum[m * (D / 8) + c];
        *reinterpret_cast<float2*>(to + (16 * m + g + 8 * h) * D + 8 * c +
                                   2 * t) =
            make_float2(x[2 * h] * gain, x[2 * h + 1] * gain);
      }
    }
  }
}

/// Where a block's sums of the slots go: to the gradient itself where the
/// sequence is one piece, else to its part.
struct SlotSums {
  float* part;  ///< of the block's first slot; null: to `grad`
  Rows grad;
  int64_t sequence, head, first;
  int count, width;
};
/// Adds up the groups' sums, kSlots rows of D numbers each, by a whole block.
template <int D, int kGroups, int kSlots>
__device__ __forceinline__ void add_up(const float* sums, const SlotSums& to) {
  for (int i = threadIdx.x; i < to.count * to.width; i += kBlock) {
    const int row = i / to.width, n = i % to.width;
    float total = 0.f;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      total += sums[(j * kSlots + row) * D + n];
    }
    if (to.part != nullptr) {
      to.part[i] = total;
    } else {
      store<float>(to.grad.data,
                   row_at(to.grad, to.sequence, to.head, to.first + row) + n,
                   to.grad.type, total);
    }
  }
}

}  // namespace luna::cuda::softmax_mma
