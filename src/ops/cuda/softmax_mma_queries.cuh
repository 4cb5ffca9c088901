#pragma once

#include "ops/cuda/softmax_mma.cuh"

// The forward passes' common part: a warp holds 16 or 32 query rows as left
// operands and walks keys in shared memory with an online softmax.

namespace luna::cuda::softmax_mma {

/// Queries of a warp and what they have seen so far.
template <typename T, int D, int M>
struct Queries {
  Left x[M][D / 16];
  Sum out[M][D / 8] = {};
  float top[M][2], sum[M][2];

  __device__ Queries() { clear(); }
  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      top[m][0] = top[m][1] = kLowest;
      sum[m][0] = sum[m][1] = 0.f;
#pragma unroll
      for (int c = 0; c < D / 8; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][c][i] = 0.f;
      }
    }
  }

  /// Rows [row, row + 8 N) of the tiles, of which `count` are keys.
  /// weight(key), keep(query row, key): with kGeneral alone.
  template <int N, bool kGeneral, typename Weight, typename Keep>
  __device__ __forceinline__ void see(uint32_t keys, uint32_t values, int row,
                                      int count, float factor,
                                      const Weight& weight, const Keep& keep) {
    if (kGeneral || count < 8 * N) {
      see_tile<N, kGeneral, true>(keys, values, row, count, factor, weight,
                                  keep);
    } else {
      see_tile<N, kGeneral, false>(keys, values, row, count, factor, weight,
                                   keep);
    }
  }
  template <int N, bool kGeneral, bool kEdge, typename Weight, typename Keep>
  __device__ __forceinline__ void see_tile(uint32_t keys, uint32_t values,
                                           int row, int count, float factor,
                                           const Weight& weight,
                                           const Keep& keep) {
    const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    Sum s[M][N];
    mma::pipelined<D / 16 * N / 2, 3>(
        [&](int i, Left& r) {
          Tile<D>::load(r, keys, row + 16 * (i % (N / 2)), 2 * (i / (N / 2)));
        },
        [&](int i, const Left& r) {
          const int k = i / (N / 2), n = 2 * (i % (N / 2));
#pragma unroll
          for (int m = 0; m < M; ++m) {
            if (k == 0) {
              mma::set<T>(s[m][n], x[m][k], r[0], r[2]);
              mma::set<T>(s[m][n + 1], x[m][k], r[1], r[3]);
            } else {
              mma::add<T>(s[m][n], x[m][k], r[0], r[2]);
              mma::add<T>(s[m][n + 1], x[m][k], r[1], r[3]);
            }
          }
        });
    float w[N][2];
    if (kGeneral) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = 8 * n + 2 * t + i;
          w[n][i] = key < count ? weight(key) : 0.f;
        }
      }
    }
    float high[M][2];
    bool rise = false;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      high[m][0] = high[m][1] = -INFINITY;
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[m][n][i] = __fmul_rn(s[m][n][i], factor);
          if (kGeneral && !(w[n][i % 2] > 0.f)) s[m][n][i] = -INFINITY;
          if (kEdge && !kGeneral && 8 * n + 2 * t + i % 2 >= count) {
            s[m][n][i] = -INFINITY;
          }
          high[m][i / 2] = fmaxf(high[m][i / 2], s[m][n][i]);
        }
      }
      rise |=
          high[m][0] > top[m][0] + kSlack || high[m][1] > top[m][1] + kSlack;
    }
    // Powers are taken from a score that is at most kSlack below the greatest,
    // so that few tiles have to shrink what was added up before.
    if (__any_sync(0xffffffffu, rise)) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float greatest = fmaxf(mma::row_max(high[m][h]), top[m][h]);
          const float shrink = mma::power(top[m][h] - greatest);
          top[m][h] = greatest;
          sum[m][h] *= shrink;
#pragma unroll
          for (int c = 0; c < D / 8; ++c) {
            out[m][c][2 * h] *= shrink;
            out[m][c][2 * h + 1] *= shrink;
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float e = mma::power(s[m][n][i] - top[m][i / 2]);
          if (kGeneral) e *= w[n][i % 2];
          sum[m][i / 2] += e;  // of this thread's keys
          if (kGeneral && e != 0.f) {
            e *= keep(16 * m + g + 8 * (i / 2), 8 * n + 2 * t + i % 2);
          }
          s[m][n][i] = e;
        }
      }
    }
    Left p[N / 2][M];
#pragma unroll
    for (int n = 0; n < N; n += 2) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma::to_left<T>(p[n / 2][m], s[m][n], s[m][n + 1]);
      }
    }
    constexpr int kPairs = D / 16;
    mma::pipelined<N / 2 * kPairs, 3>(
        [&](int i, Left& r) {
          Tile<D>::load_right(r, values, row + 16 * (i / kPairs),
                              2 * (i % kPairs));
        },
        [&](int i, const Left& r) {
          const int c = 2 * (i % kPairs);
#pragma unroll
          for (int m = 0; m < M; ++m) {
            mma::add<T>(out[m][c], p[i / kPairs][m], r[0], r[1]);
            mma::add<T>(out[m][c + 1], p[i / kPairs][m], r[2], r[3]);
          }
        });
  }
};

/// Pack's output and stats from the pieces' parts.
void merge_parts(const SoftmaxForward<float>& args, cudaStream_t stream);
/// By the width that the rows are padded to.
template <int D>
void pack_forward(const SoftmaxForward<float>& args, cudaStream_t stream);
template <int D>
void unpack_forward(const SoftmaxForward<float>& args, cudaStream_t stream);

}  // namespace luna::cuda::softmax_mma
