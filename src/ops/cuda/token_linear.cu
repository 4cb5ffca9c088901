// Products of few rows. A block has 16 outputs of up to 32 rows; its warps, and
// the blocks of a cluster, share the sums' depth, so that every load is asked
// for at once and waited for together. The weights are brought to L2 while the
// launch before, which makes x, ends.

#include "ops/cuda/token_linear.h"

#include <cuda_bf16.h>

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/mma.cuh"
#include "ops/token_linear.h"

namespace luna::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kOuts = 16, kRows = 32;
constexpr int kDepth = 32;   // numbers of a row that a warp takes at once
constexpr int kAhead = 2;    // such pieces asked for together
constexpr int kColumn = 20;  // from row to row of sums: no banks meet
constexpr int kLine = 64;    // numbers of a line of L2
constexpr int kMostOfCluster = 4;

__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
#endif
}
/// To the place of `own` in another block's shared memory.
__device__ __forceinline__ void store_in_block(float* own, int block, float x) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 at;\n"
      "mapa.shared::cluster.u32 at, %0, %1;\n"
      "st.shared::cluster.f32 [at], %2;\n}\n" ::"r"(mma::shared_address(own)),
      "r"(block), "f"(x)
      : "memory");
#endif
}
__device__ __forceinline__ void put(const TokenLinear& p, int row, int out,
                                    float sum) {
  if (out >= p.outs) return;
  sum += __bfloat162float(static_cast<const __nv_bfloat16*>(p.bias)[out]);
  if (p.relu && sum < 0.f) sum = 0.f;  // NaN stays
  static_cast<__nv_bfloat16*>(p.out)[static_cast<int64_t>(row) * p.outs + out] =
      __float2bfloat16_rn(sum);
}

/// 8 numbers of a row from `at` on; zeros where not `valid`.
__device__ __forceinline__ uint4 numbers(const __nv_bfloat16* rows, int row,
                                         int in, int at, bool valid) {
  return valid ? *reinterpret_cast<const uint4*>(
                     rows + static_cast<int64_t>(row) * in + at)
               : make_uint4(0, 0, 0, 0);
}

/// kTiles: of 8 rows of x.
template <int kTiles>
__global__ void __launch_bounds__(kThreads)
    token_linear_kernel(const __grid_constant__ TokenLinear p) {
  __shared__ float parts[kWarps][8 * kTiles * kColumn];
  __shared__ float sums[(8 * kTiles + kMostOfCluster) * kOuts];
  const auto* weight = static_cast<const __nv_bfloat16*>(p.weight);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  const int out = static_cast<int>(blockIdx.x) * kOuts;
  const int first_row = static_cast<int>(blockIdx.z) * kRows;
  const int rows = min(p.rows - first_row, kRows);
  const auto* x = static_cast<const __nv_bfloat16*>(p.x) +
                  static_cast<int64_t>(first_row) * p.in;
  const int blocks = static_cast<int>(gridDim.y);
  const int block = static_cast<int>(blockIdx.y);
  const int depth = p.in / blocks, begin = block * depth;
  if (blocks > 1) cluster_arrive();
  for (int i = thread; i < kOuts * ((depth + kLine - 1) / kLine);
       i += kThreads) {
    if (out + i % kOuts < p.outs) {
      hopper::fetch_ahead(weight +
                          static_cast<int64_t>(out + i % kOuts) * p.in + begin +
                          i / kOuts * kLine);
    }
  }
  wait_for_previous_launch();
  allow_next_launch();

  // Thread t of a row has 8 neighbours of a piece's 32 numbers, and so has it
  // on both sides: which numbers meet in a product is one's own choice.
  mma::Sum sum[kTiles] = {};
  for (int first = warp * kDepth; first < depth;
       first += kAhead * kWarps * kDepth) {
    uint4 w[kAhead][2], v[kAhead][kTiles];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * kWarps * kDepth;
      const bool live = at < depth;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = out + g + 8 * half;
        w[i][half] = numbers(weight, row, p.in, begin + at + 8 * t,
                             live && row < p.outs);
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int row = 8 * n + g;
        v[i][n] = numbers(x, row, p.in, begin + at + 8 * t, live && row < rows);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const mma::Left a[2] = {
          {w[i][0].x, w[i][1].x, w[i][0].y, w[i][1].y},
          {w[i][0].z, w[i][1].z, w[i][0].w, w[i][1].w},
      };
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        mma::add<__nv_bfloat16>(sum[n], a[0], v[i][n].x, v[i][n].y);
        mma::add<__nv_bfloat16>(sum[n], a[1], v[i][n].z, v[i][n].w);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      parts[warp][(8 * n + 2 * t + i % 2) * kColumn + g + i / 2 * 8] =
          sum[n][i];
    }
  }
  __syncthreads();

  // Sums of the warps; those of a cluster's blocks go to the block that has the
  // row, which adds them, always in one order.
  const int most = (rows + blocks - 1) / blocks;
  if (blocks > 1) cluster_wait();  // the others have begun
  for (int i = thread; i < rows * kOuts; i += kThreads) {
    const int row = i / kOuts, o = i % kOuts;
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += parts[w][row * kColumn + o];
    if (blocks == 1) {
      put(p, first_row + row, out + o, total);
    } else {
      store_in_block(&sums[(block * most + row % most) * kOuts + o], row / most,
                     total);
    }
  }
  if (blocks == 1) return;
  cluster_arrive();
  cluster_wait();
  for (int i = thread; i < most * kOuts; i += kThreads) {
    const int row = block * most + i / kOuts;
    if (row >= rows) break;
    float total = 0.f;
    for (int b = 0; b < blocks; ++b) total += sums[b * most * kOuts + i];
    put(p, first_row + row, out + i % kOuts, total);
  }
}

}  // namespace

void token_linear(const TokenLinear& p, cudaStream_t stream) {
  const int tiles = (p.outs + kOuts - 1) / kOuts;
  // A cluster where warps would have more than one turn.
  int blocks = 1;
  while (blocks < kMostOfCluster && p.in % (2 * blocks * kDepth) == 0 &&
         p.in / blocks > kAhead * kWarps * kDepth) {
    blocks *= 2;
  }
  const auto kernel = p.rows <= 8    ? token_linear_kernel<1>
                      : p.rows <= 16 ? token_linear_kernel<2>
                                     : token_linear_kernel<kRows / 8>;
  launch_clusters_after(
      kernel, dim3(tiles, blocks, (p.rows + kRows - 1) / kRows),
      dim3(1, blocks), kThreads, 0, stream, "token_linear", p);
}

}  // namespace luna::cuda
