// A block a row, read once each way: the sum of exponentials is rescaled
// whenever a thread meets a larger number.

#include "ops/cuda/cross_entropy.h"

#include <cmath>

#include "ops/cuda/launch.h"
#include "ops/cuda/pairs.cuh"
#include "ops/cuda/tile.cuh"

namespace luna::cuda {
namespace {

constexpr int kRowThreads = 256, kFinishThreads = 1024;

/// Σ exp(z) as sum·exp(most), and what else a row's loss needs.
struct Seen {
  float most = -INFINITY, sum = 0, plain = 0;
  int better = 0;  ///< numbers that come before the label's

  __device__ void add(float z, bool before_label, float of_label) {
    const float more = fmaxf(most, z);
    // Both infinite: exp(-inf - -inf) would be NaN for a row that is not.
    sum = sum * (most == more ? 1.0f : __expf(most - more)) +
          (z == more ? 1.0f : __expf(z - more));
    most = more;
    plain += z;
    better += z > of_label || (before_label && z == of_label);
  }
  __device__ void add(const Seen& other) {
    const float more = fmaxf(most, other.most);
    sum = sum * (most == more ? 1.0f : __expf(most - more)) +
          other.sum * (other.most == more ? 1.0f : __expf(other.most - more));
    most = more;
    plain += other.plain;
    better += other.better;
  }
  __device__ Seen from_lane(int step) const {
    Seen other;
    other.most = __shfl_xor_sync(0xffffffffu, most, step);
    other.sum = __shfl_xor_sync(0xffffffffu, sum, step);
    other.plain = __shfl_xor_sync(0xffffffffu, plain, step);
    other.better = __shfl_xor_sync(0xffffffffu, better, step);
    return other;
  }
};

/// Of all threads, on thread 0.
__device__ Seen of_block(Seen seen) {
  __shared__ Seen of_warps[kRowThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) seen.add(seen.from_lane(step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = seen;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kRowThreads / 32; ++i) seen.add(of_warps[i]);
  }
  return seen;
}

/// Calls `of_pair` with the pairs of the row that begins at `first`, or
/// `of_one` with its numbers: a thread every kRowThreads-th. kPairs: an even
/// number of classes, so that rows begin on a pair.
template <bool kPairs, typename OfPair, typename OfOne>
__device__ __forceinline__ void each_number(const CrossEntropy& a,
                                            int64_t first,
                                            const OfPair& of_pair,
                                            const OfOne& of_one) {
  if constexpr (kPairs) {
    constexpr int kAtOnce = 4;
    const int64_t pairs = a.classes / 2;
    for (int64_t i = threadIdx.x; i < pairs; i += kAtOnce * kRowThreads) {
      uint2 raw[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t pair = i + k * kRowThreads;
        if (pair < pairs) raw[k] = load_raw(a.logits, first / 2 + pair, a.type);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t pair = i + k * kRowThreads;
        if (pair >= pairs) break;
        of_pair(pair, to_pair(raw[k], a.type));
      }
    }
  } else {
    for (int64_t j = threadIdx.x; j < a.classes; j += kRowThreads) {
      of_one(j, load<float>(a.logits, first + j, a.type));
    }
  }
}

template <bool kPairs>
__global__ void __launch_bounds__(kRowThreads) forward_kernel(CrossEntropy a) {
  const int64_t row = blockIdx.x, first = row * a.classes;
  const int64_t label = a.labels[row];
  const bool counts = label != a.ignored;
  float of_label = INFINITY;
  if (counts) {  // a label that is no class makes the loss NaN
    of_label = label >= 0 && label < a.classes
                   ? load<float>(a.logits, first + label, a.type)
                   : NAN;
  }
  Seen seen;
  const auto add = [&](int64_t j, float z) {
    seen.add(z, j < label, of_label);
  };
  each_number<kPairs>(
      a, first,
      [&](int64_t pair, float2 z) {
        add(2 * pair, z.x);
        add(2 * pair + 1, z.y);
      },
      add);
  seen = of_block(seen);
  if (threadIdx.x > 0) return;
  const float log_sum = logf(seen.sum);
  a.log_sums[2 * row] = seen.most;
  a.log_sums[2 * row + 1] = log_sum;
  float loss =
      counts ? log_sum + (1 - a.smoothing) * (seen.most - of_label) : 0.0f;
  if (counts && a.smoothing > 0) {  // 0 times an infinite number is none
    const float mean = seen.plain / static_cast<float>(a.classes);
    loss += a.smoothing * (seen.most - mean);
  }
  a.of_rows[row] = loss;
  a.of_rows[a.rows + row] = counts && seen.better == 0 ? 1.0f : 0.0f;
}

/// One block, so that the order of the sums is always the same.
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(CrossEntropy a) {
  __shared__ float sums[3][kFinishThreads];
  float mine[3] = {};
  for (int64_t row = threadIdx.x; row < a.rows; row += kFinishThreads) {
    mine[0] += a.of_rows[row];
    mine[1] += a.of_rows[a.rows + row];
    mine[2] += a.labels[row] != a.ignored;
  }
  for (int i = 0; i < 3; ++i) sums[i][threadIdx.x] = mine[i];
  for (int step = kFinishThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) {
      for (auto& sum : sums) sum[threadIdx.x] += sum[threadIdx.x + step];
    }
  }
  if (threadIdx.x > 0) return;
  a.totals[0] = sums[0][0] / sums[2][0];
  a.totals[1] = sums[1][0];
  a.totals[2] = sums[2][0];
}

template <bool kPairs>
__global__ void __launch_bounds__(kRowThreads) backward_kernel(CrossEntropy a) {
  const int64_t row = blockIdx.x, first = row * a.classes;
  const int64_t label = a.labels[row];
  const bool counts = label != a.ignored;
  const float scale = counts ? *a.grad / *a.count : 0.0f;
  const float most = a.log_sums[2 * row], log_sum = a.log_sums[2 * row + 1];
  const float level = a.smoothing / static_cast<float>(a.classes);
  const auto gradient = [&](float z, int64_t j) {
    if (!counts) return 0.0f;
    return scale * (__expf(z - most - log_sum) - level -
                    (j == label ? 1.0f - a.smoothing : 0.0f));
  };
  each_number<kPairs>(
      a, first,
      [&](int64_t pair, float2 z) {
        store_pair(a.grad_logits, first / 2 + pair, a.type,
                   {gradient(z.x, 2 * pair), gradient(z.y, 2 * pair + 1)});
      },
      [&](int64_t j, float z) {
        store(a.grad_logits, first + j, a.type, gradient(z, j));
      });
}

}  // namespace

void cross_entropy_forward(const CrossEntropy& args, cudaStream_t stream) {
  if (args.rows > 0) {
    const auto kernel =
        args.classes % 2 == 0 ? forward_kernel<true> : forward_kernel<false>;
    kernel<<<static_cast<unsigned>(args.rows), kRowThreads, 0, stream>>>(args);
    check_launch("cross_entropy: rows");
  }
  finish_kernel<<<1, kFinishThreads, 0, stream>>>(args);
  check_launch("cross_entropy: sums");
}

void cross_entropy_backward(const CrossEntropy& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const auto kernel =
      args.classes % 2 == 0 ? backward_kernel<true> : backward_kernel<false>;
  kernel<<<static_cast<unsigned>(args.rows), kRowThreads, 0, stream>>>(args);
  check_launch("cross_entropy: gradients");
}

}  // namespace luna::cuda
