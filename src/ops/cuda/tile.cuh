#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/rows.h"

// What the portable kernels share: reading rows of any dtype, finding a
// block's piece of a sequence, and a 64 x 64 matrix product by 256 threads.

namespace luna::cuda {

constexpr int kTile = 64;
constexpr int kThreads = 256;

template <typename T>
__device__ __forceinline__ T load(const void* data, int64_t i, Scalar type) {
  switch (type) {
    case Scalar::kFloat:
      return static_cast<T>(static_cast<const float*>(data)[i]);
    case Scalar::kDouble:
      return static_cast<T>(static_cast<const double*>(data)[i]);
    case Scalar::kHalf:
      return static_cast<T>(__half2float(static_cast<const __half*>(data)[i]));
    default:
      return static_cast<T>(
          __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]));
  }
}

template <typename T>
__device__ __forceinline__ void store(void* data, int64_t i, Scalar type, T x) {
  switch (type) {
    case Scalar::kFloat:
      static_cast<float*>(data)[i] = static_cast<float>(x);
      break;
    case Scalar::kDouble:
      static_cast<double*>(data)[i] = static_cast<double>(x);
      break;
    case Scalar::kHalf:
      static_cast<__half*>(data)[i] = __float2half_rn(static_cast<float>(x));
      break;
    default:
      static_cast<__nv_bfloat16*>(data)[i] =
          __float2bfloat16_rn(static_cast<float>(x));
  }
}

__device__ __forceinline__ int64_t row_at(const Rows& r, int64_t batch,
                                          int64_t head, int64_t row) {
  return batch * r.batch + head * r.head + row * r.row;
}

template <typename T>
__device__ __forceinline__ T factor_of(const Factor<T>& f, int64_t batch,
                                       int64_t head, int64_t row) {
  return f.data == nullptr ? T(1)
                           : f.data[batch * f.batch + head * f.head + row];
}

/// One head's rows of an operand, from row `begin` on.
template <typename T>
struct HeadRows {
  __device__ HeadRows(const Operand<T>& x, int64_t batch, int64_t head,
                      int64_t begin)
      : rows(x.rows),
        at(row_at(x.rows, batch, head, begin)),
        factor(x.factor.data == nullptr
                   ? nullptr
                   : x.factor.data + batch * x.factor.batch +
                         head * x.factor.head + begin) {}
  __device__ T operator()(int64_t row, int64_t column) const {
    const T x = load<T>(rows.data, at + row * rows.row + column, rows.type);
    return factor == nullptr ? x : x * factor[row];
  }
  Rows rows;
  int64_t at;
  const T* factor;
};

/// A piece of a sequence: tokens [offset, offset + count) of its `length`.
struct Piece {
  int64_t sequence, batch;
  int64_t begin;   ///< the sequence's first row in its tensor
  int64_t length;  ///< of the sequence
  int64_t index;   ///< among the sequence's pieces
  int64_t offset, count;
};

/// One side of an op that has a sequence for each entry or packed ones.
__device__ __forceinline__ void sequence_of(const Cut& cut, int64_t sequence,
                                            Piece& piece) {
  piece.sequence = sequence;
  piece.batch = cut.begin == nullptr ? sequence : 0;
  piece.begin = cut.begin == nullptr ? 0 : cut.begin[sequence];
  piece.length =
      cut.begin == nullptr ? cut.length : cut.begin[sequence + 1] - piece.begin;
}

__device__ __forceinline__ int64_t first_piece(const Cut& cut,
                                               int64_t sequence) {
  return cut.first == nullptr ? sequence * cut.per_sequence
                              : cut.first[sequence];
}

/// False where there is no such piece.
__device__ __forceinline__ bool locate(const Cut& cut, int64_t number,
                                       Piece& piece) {
  int64_t sequence;
  if (cut.first == nullptr) {
    if (cut.per_sequence == 0) return false;
    sequence = number / cut.per_sequence;
    if (sequence >= cut.sequences) return false;
  } else {
    if (number >= cut.first[cut.sequences]) return false;
    int64_t low = 0, high = cut.sequences;  // first[low] <= number
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (cut.first[middle] <= number) {
        low = middle;
      } else {
        high = middle;
      }
    }
    sequence = low;
  }
  sequence_of(cut, sequence, piece);
  piece.index = number - first_piece(cut, sequence);
  piece.offset = piece.index * cut.size;
  const int64_t left = piece.length - piece.offset;
  piece.count = left < cut.size ? left : cut.size;
  return true;
}

/// A block's 64 x 64 product: each thread holds rows 4 y.. and columns 4 x..
/// of it. Sums run along the depth in order, so that equal operands give equal
/// bits wherever they stand.
template <typename T>
struct Product {
  static constexpr int kDepth = sizeof(T) == 8 ? 8 : 16;
  static constexpr int kStride = kTile + 4;
  struct Shared {
    alignas(16) T a[kDepth * kStride];
    alignas(16) T b[kDepth * kStride];
  };

  __device__ Product() : y(threadIdx.x / 16 * 4), x(threadIdx.x % 16 * 4) {
    clear();
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i][j] = T(0);
    }
  }

  /// sum += A B; a(m, k) and b(k, n) give numbers for m, n < 64 and
  /// k < depth, 0 beyond the edges. kDeepA: neighbours in memory differ in k.
  template <bool kDeepA, bool kDeepB, typename A, typename B>
  __device__ void add(Shared& shared, int64_t depth, const A& a, const B& b) {
    for (int64_t k0 = 0; k0 < depth; k0 += kDepth) {
      __syncthreads();
      const int part =
          depth - k0 < kDepth ? static_cast<int>(depth - k0) : kDepth;
      for (int e = threadIdx.x; e < kTile * kDepth; e += kThreads) {
        const int m = kDeepA ? e / kDepth : e % kTile;
        const int k = kDeepA ? e % kDepth : e / kTile;
        shared.a[k * kStride + m] = k < part ? a(m, k0 + k) : T(0);
      }
      for (int e = threadIdx.x; e < kTile * kDepth; e += kThreads) {
        const int n = kDeepB ? e / kDepth : e % kTile;
        const int k = kDeepB ? e % kDepth : e / kTile;
        shared.b[k * kStride + n] = k < part ? b(k0 + k, n) : T(0);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        T u[4], v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) u[i] = shared.a[k * kStride + y + i];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = shared.b[k * kStride + x + j];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[i][j] += u[i] * v[j];
        }
      }
    }
  }

  template <typename F>
  __device__ void for_each(const F& f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) f(y + i, x + j, sum[i][j]);
    }
  }

  const int y, x;
  T sum[4][4];
};

template <typename T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}

/// A product that is rounded before anything is added to it: what is compared
/// with a saved maximum must have that maximum's bits.
__device__ __forceinline__ float rounded_product(float x, float y) {
  return __fmul_rn(x, y);
}
__device__ __forceinline__ double rounded_product(double x, double y) {
  return __dmul_rn(x, y);
}

template <typename T>
__device__ __forceinline__ T guarded(T den, T eps) {
  return den < T(0) ? (den < -eps ? den : -eps) : (den > eps ? den : eps);
}

/// The tensors' tail in 16-byte words is not assumed: blocks along x.
inline int64_t blocks_for(int64_t items, int64_t per_block) {
  return (items + per_block - 1) / per_block;
}

}  // namespace luna::cuda
