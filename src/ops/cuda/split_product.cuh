#pragma once

#include "ops/cuda/mma.cuh"
#include "ops/cuda/tile.cuh"

// Products of float32 numbers by tensor cores, each operand as the sum of two
// bfloat16 numbers: what is left out is 2^-16 of a term. For what comes from
// bfloat16 and float16 tensors; no number is too large or too small for it.

namespace luna::cuda {

/// Two numbers as two pairs of bfloat16 that add up to them.
struct Split {
  __device__ Split(float x, float y) : high(mma::pack<__nv_bfloat16>(x, y)) {
    const float xs = __int_as_float(static_cast<int>(high << 16));
    const float ys = __int_as_float(static_cast<int>(high & 0xffff0000u));
    low = mma::pack<__nv_bfloat16>(x - xs, y - ys);
  }
  __device__ explicit Split(float2 x) : Split(x.x, x.y) {}
  uint32_t high, low;
};

/// Batches of loads are on their way before the first is used: `load` gives
/// number i of `count`, as it lies in memory, `use` gets it.
template <int kBatch, typename Load, typename Use>
__device__ __forceinline__ void batched(int count, const Load& load,
                                        const Use& use) {
  for (int base = threadIdx.x; base < count; base += kBatch * kThreads) {
    decltype(load(0)) items[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = base + i * kThreads;
      if (at < count) items[i] = load(at);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = base + i * kThreads;
      if (at < count) use(at, items[i]);
    }
  }
}

/// One head's rows, as HeadRows<float> (tile.cuh), but what they give is a
/// number as it lies in memory: no load is waited for before the next.
struct RawRows {
  struct Number {
    __device__ __forceinline__ operator float() const {
      const float x =
          type == Scalar::kFloat ? __int_as_float(static_cast<int>(bits))
          : type == Scalar::kBFloat16
              ? __int_as_float(static_cast<int>(bits << 16))
              : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
      return x * factor;
    }
    uint32_t bits;
    float factor;
    Scalar type;
  };

  __device__ RawRows(const Operand<float>& x, int64_t batch, int64_t head,
                     int64_t begin)
      : type(x.rows.type),
        row(x.rows.row),
        data(static_cast<const char*>(x.rows.data) +
             row_at(x.rows, batch, head, begin) * bytes()),
        factor(x.factor.data == nullptr
                   ? nullptr
                   : x.factor.data + batch * x.factor.batch +
                         head * x.factor.head + begin) {}
  __device__ int64_t bytes() const { return type == Scalar::kFloat ? 4 : 2; }
  __device__ __forceinline__ Number operator()(int64_t r,
                                               int64_t column) const {
    const int64_t i = r * row + column;
    Number x = zero();
    if (type == Scalar::kFloat) {
      x.bits = __ldg(reinterpret_cast<const uint32_t*>(data) + i);
    } else {
      x.bits = __ldg(reinterpret_cast<const uint16_t*>(data) + i);
    }
    if (factor != nullptr) x.factor = __ldg(factor + r);
    return x;
  }
  __device__ Number zero() const { return {0, 1.f, type}; }

  Scalar type;
  int64_t row;
  const char* data;
  const float* factor;
};

/// The same with a third part: all digits of float32.
struct FullSplit {
  __device__ explicit FullSplit(float2 x) : split(x) {
    const auto rest = [](float y, uint32_t high, uint32_t low) {
      return y - __int_as_float(static_cast<int>(high)) -
             __int_as_float(static_cast<int>(low));
    };
    least = mma::pack<__nv_bfloat16>(
        rest(x.x, split.high << 16, split.low << 16),
        rest(x.y, split.high & 0xffff0000u, split.low & 0xffff0000u));
  }
  Split split;
  uint32_t least;
};

/// A left operand, 16 x 16: what mma::Left holds of each part.
struct SplitLeft {
  __device__ void put(int i, const Split& x) {
    high[i] = x.high;
    low[i] = x.low;
  }
  mma::Left high, low;
};

/// c += a b.
__device__ __forceinline__ void multiply(mma::Sum& c, const SplitLeft& a,
                                         const Split& b0, const Split& b1) {
  mma::add<__nv_bfloat16>(c, a.high, b0.high, b1.high);
  mma::add<__nv_bfloat16>(c, a.high, b0.low, b1.low);
  mma::add<__nv_bfloat16>(c, a.low, b0.high, b1.high);
}

__device__ __forceinline__ void multiply(mma::Sum& c, const SplitLeft& a,
                                         const FullSplit& b0,
                                         const FullSplit& b1) {
  mma::add<__nv_bfloat16>(c, a.high, b0.least, b1.least);
  mma::add<__nv_bfloat16>(c, a.low, b0.split.low, b1.split.low);
  multiply(c, a, b0.split, b1.split);
}

/// As Product<float> (tile.cuh). Each warp has 16 rows by 32 columns.
struct SplitProduct {
  static constexpr int kDepth = 32;
  static constexpr int kStride = kTile + 4;
  struct Shared {
    alignas(16) float a[kDepth * kStride];
    alignas(16) float b[kDepth * kStride];
  };

  __device__ SplitProduct()
      : y(threadIdx.x / 32 % 4 * 16), x(threadIdx.x / 128 * 32) {}

  template <bool kDeepA, bool kDeepB, typename A, typename B>
  __device__ void add(Shared& shared, int64_t depth, const A& a, const B& b) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    constexpr int kLoads = kTile * kDepth / kThreads;
    for (int64_t k0 = 0; k0 < depth; k0 += kDepth) {
      const int part =
          depth - k0 < kDepth ? static_cast<int>(depth - k0) : kDepth;
      // All loads are on their way before the first is used.
      decltype(a(0, 0)) a_rows[kLoads];
      decltype(b(0, 0)) b_rows[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int e = threadIdx.x + i * kThreads;
        const int m = kDeepA ? e / kDepth : e % kTile;
        const int k = kDeepA ? e % kDepth : e / kTile;
        if (k < part) a_rows[i] = a(m, k0 + k);
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int e = threadIdx.x + i * kThreads;
        const int n = kDeepB ? e / kDepth : e % kTile;
        const int k = kDeepB ? e % kDepth : e / kTile;
        if (k < part) b_rows[i] = b(k0 + k, n);
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int e = threadIdx.x + i * kThreads;
        const int m = kDeepA ? e / kDepth : e % kTile;
        const int k = kDeepA ? e % kDepth : e / kTile;
        shared.a[k * kStride + m] =
            k < part ? static_cast<float>(a_rows[i]) : 0.f;
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int e = threadIdx.x + i * kThreads;
        const int n = kDeepB ? e / kDepth : e % kTile;
        const int k = kDeepB ? e % kDepth : e / kTile;
        shared.b[k * kStride + n] =
            k < part ? static_cast<float>(b_rows[i]) : 0.f;
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; k += 16) {
        const float* left = shared.a + (k + 2 * t) * kStride + y + g;
        SplitLeft operand;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* from = left + i / 2 * 8 * kStride + i % 2 * 8;
          operand.put(i, Split(from[0], from[kStride]));
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* right = shared.b + (k + 2 * t) * kStride + x + 8 * j + g;
          multiply(sum[j], operand, Split(right[0], right[kStride]),
                   Split(right[8 * kStride], right[9 * kStride]));
        }
      }
    }
  }

  template <typename F>
  __device__ void for_each(const F& f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f(y + g + i / 2 * 8, x + 8 * j + 2 * t + i % 2, sum[j][i]);
      }
    }
  }

  const int y, x;  ///< of the warp's part
  mma::Sum sum[4] = {};
};

}  // namespace luna::cuda
