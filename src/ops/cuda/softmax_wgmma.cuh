#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/dropout.cuh"
#include "ops/cuda/fused.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/softmax_mma.h"
#include "ops/cuda/tile.cuh"
#include "ops/gpu_paths.h"

// What the kernels of softmax_wgmma.h share. A tile is 64 rows of 64 numbers,
// swizzled as the copy engine leaves it; a warpgroup's result has 64 rows, of
// which thread (g, t) of warp w holds 16 w + g and 16 w + g + 8.
//
// Beyond the tensor's last token, and in the columns of rows that are narrower
// than a tile, the copy engine leaves zeros. Beyond a packed
// sequence's last one stands the next sequence, or anything, NaN too: kPacked
// kernels put the zeros there, so that from then on a tile is as any other.

namespace luna::cuda::softmax_wgmma {

using namespace hopper;

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLowest = -1e38f;
constexpr float kSlack = 8.f;      // see Online::weigh
constexpr float kLarge = 1048576;  // see is_large
constexpr int kGroup = 128;        // threads of a warpgroup
constexpr int kRows = 64;          // of a tile
constexpr int kWidth = ops::kSoftmaxWgmmaWidth;
constexpr int kTileBytes = kRows * kWidth * 2;
constexpr int kSteps = kWidth / 16;  // of a product over a tile
constexpr size_t kMemoryLimit = 227 * 1024;

using Result = float[32];      ///< a thread's part of 64 x 64 numbers
using Rounded = uint32_t[16];  ///< the same as a left operand

/// Tells the compiler that all threads of the warp have this number.
__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(0xffffffffu, x, 0);
}
__device__ __forceinline__ void clear(Result& x) {
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] = 0.f;
}
__device__ __forceinline__ float inverse_of(float sum) {
  return sum == 0.f ? 0.f : 1.f / fmaxf(sum, 1e-37f);
}
__device__ __forceinline__ float logsumexp(float max, float inverse) {
  return inverse == 0.f ? INFINITY : max - log2f(inverse);
}

/// A score times its factor is not rounded before a logsumexp (or a maximum) of
/// rounded scores is taken from it, which is as good or better; unless that is
/// so large that its last digit is worth a power of its own.
__device__ __forceinline__ bool is_large(float x) {
  return fabsf(x) > kLarge && fabsf(x) < INFINITY;
}
/// Then scores become products here, and the factor 1.
__device__ __forceinline__ float factor_of(Result& s, bool large,
                                           float factor) {
  if (!large) return factor;
#pragma unroll
  for (int i = 0; i < 32; ++i) s[i] = __fmul_rn(s[i], factor);
  return 1.f;
}

/// The rows of one side's tensors, [batch, heads, length].
struct Side {
  int64_t batch, length;
};
/// Packed sequences share one entry.
inline Side tokens_of(const SoftmaxProblem<float>& p) {
  return {p.tokens.begin == nullptr ? p.tokens.sequences : 1, p.tokens.length};
}
inline Side slots_of(const SoftmaxProblem<float>& p) {
  return {p.tokens.sequences, p.slots};
}
/// A side of which the whole batch shares one entry.
inline Side shared(const Side& side) { return {1, side.length}; }

/// Whether the copy engine can read these rows.
inline bool has_strides(const Rows& r, const Side& side, int64_t heads) {
  return (side.batch <= 1 || r.batch > 0) && (heads <= 1 || r.head > 0) &&
         (side.length <= 1 || r.row > 0);
}
/// How it reads them, a tile at a time; beyond their width it leaves zeros.
inline CUtensorMap map_of(const Rows& r, const Side& side, int64_t heads,
                          int64_t width) {
  return fused_rows(r, side.batch, heads, side.length, width, kWidth);
}

// --- Products: all are asynchronous -----------------------------------------

/// x = a b^T, both tiles in shared memory, rows along the depth.
__device__ __forceinline__ void multiply_deep(Result& x, uint32_t a,
                                              uint32_t b) {
  const DeepOperand left(a), right(b);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    multiply<false, false>(x, left.step(k), right.step(k), k > 0);
  }
}
/// x = a b^T with a in registers.
__device__ __forceinline__ void multiply_deep(Result& x, const Rounded& a,
                                              uint32_t b) {
  const DeepOperand right(b);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    multiply<false>(x, a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3],
                    right.step(k), k > 0);
  }
}
/// x += (or =) a b with a in registers; rows of b are steps of the depth.
/// Sums begin so, not with clear(): the compiler would put its zeros between
/// products.
__device__ __forceinline__ void add_wide(Result& x, const Rounded& a,
                                         uint32_t b, bool accumulate = true) {
  const WideOperand right(b);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    multiply<true>(x, a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3],
                   right.step(k), accumulate || k > 0);
  }
}
/// x += (or =) a^T b, both tiles in shared memory.
__device__ __forceinline__ void add_turned(Result& x, uint32_t a, uint32_t b,
                                           bool accumulate = true) {
  const WideOperand left(a), right(b);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    multiply<true, true>(x, left.step(k), right.step(k), accumulate || k > 0);
  }
}

/// Numbers 8 i.. of the result as the registers of a left operand.
__device__ __forceinline__ void round_to(Rounded& to, const Result& x) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    to[i] = mma::pack<__nv_bfloat16>(x[2 * i], x[2 * i + 1]);
  }
}
/// A tile's rows as a left operand.
__device__ __forceinline__ void load_left(Rounded& to, uint32_t tile,
                                          int warp) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    mma::Left r;
    mma::Tile<kWidth>::load(r, tile, 16 * warp, 2 * k);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[4 * k + i] = r[i];
  }
}
/// Its rows from `count` on become zeros.
__device__ __forceinline__ void clear_left(Rounded& x, int count, int warp) {
  const int row = 16 * warp + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (row + 8 * (i % 2) >= count) x[i] = 0u;
  }
}
/// Rows [first, end) of tiles that lie one after the other become zeros, by a
/// block of kThreads. Products see them after fence_async and a barrier.
template <int kThreads>
__device__ __forceinline__ void clear_rows(uint32_t tiles, int first, int end) {
  constexpr int kWords = kTileBytes / kRows / 16;  // 16 bytes each, of a row
  for (int i = first * kWords + threadIdx.x; i < end * kWords; i += kThreads) {
    asm volatile(
        "st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n" ::"r"(tiles + 16 * i),
        "r"(0)
        : "memory");
  }
}
/// The result's rows to a tile.
__device__ __forceinline__ void put_tile(uint32_t tile, const Rounded& x,
                                         int warp) {
  const int row = 16 * warp + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    mma::Tile<kWidth>::put(tile, row + 8 * (i % 2), i / 2, x[i]);
  }
}

/// Row h (g or g + 8) of the result, `width` numbers of it, to global memory, 8
/// bytes a thread.
__device__ __forceinline__ void store_row(__nv_bfloat16* row, int width,
                                          const Result& x, int h, float gain,
                                          bool valid) {
  const int t = threadIdx.x % 4, odd = t % 2;
#pragma unroll
  for (int c = 0; c < 8; c += 2) {
    const auto word = [&](int chunk) {
      return mma::pack<__nv_bfloat16>(x[4 * chunk + 2 * h] * gain,
                                      x[4 * chunk + 2 * h + 1] * gain);
    };
    const uint32_t even_word = word(c), odd_word = word(c + 1);
    const uint32_t got =
        __shfl_xor_sync(0xffffffffu, odd ? even_word : odd_word, 1);
    const uint2 both =
        odd ? make_uint2(got, odd_word) : make_uint2(even_word, got);
    if (valid && 8 * (c + odd) < width) {
      *reinterpret_cast<uint2*>(row + 8 * (c + odd) + 2 * (t - odd)) = both;
    }
  }
}

template <typename T>
__device__ __forceinline__ T* row_pointer(const Rows& r, int64_t batch,
                                          int64_t head, int64_t row) {
  return static_cast<T*>(r.data) + row_at(r, batch, head, row);
}

// --- Tiles on their way ------------------------------------------------------

/// Stages of tiles that all of a block's warps read, numbered in order. Thread
/// 0 of the block asks for them.
template <int kStages>
struct Ring {
  struct Barriers {
    uint64_t full[kStages], empty[kStages];
  };
  /// By one thread; a barrier of the block comes after.
  __device__ static void init(Barriers& b, int warps) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&b.full[i]), 1);
      barrier_init(shared_address(&b.empty[i]), warps);
    }
  }
  __device__ __forceinline__ static uint32_t full(Barriers& b, int number) {
    return shared_address(&b.full[number % kStages]);
  }
  __device__ __forceinline__ static void arrived(Barriers& b, int number) {
    wait(full(b, number), number / kStages & 1);
  }
  /// The warp is done with it.
  __device__ __forceinline__ static void release(Barriers& b, int number) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      arrive(shared_address(&b.empty[number % kStages]));
    }
  }
  /// Every warp is done with it.
  __device__ __forceinline__ static void released(Barriers& b, int number) {
    wait(shared_address(&b.empty[number % kStages]), number / kStages & 1);
  }
};

// --- Softmax -----------------------------------------------------------------

/// What kernels are compiled for: weights of keys alone, or dropout and perhaps
/// weights.
enum class Extras { kNone, kWeights, kDropout };

/// Calls `body` with those that the problem has.
template <typename Body>
void with_extras(const SoftmaxProblem<float>& p, Body body) {
  if (p.dropout.seed != nullptr) {
    body.template operator()<Extras::kDropout>();
  } else if (p.weight.data != nullptr) {
    body.template operator()<Extras::kWeights>();
  } else {
    body.template operator()<Extras::kNone>();
  }
}

/// Of a key that takes part; others count nothing, NaN among them.
__device__ __forceinline__ bool is_live(float weight) { return weight > 0.f; }

/// What a warpgroup's 64 query rows have seen so far. Scores are to the base 2.
struct Online {
  Result out;  ///< set by the first product
  float top[2], sum[2], shrink[2];
  bool large;

  __device__ __forceinline__ void begin() {
    large = false;
    top[0] = top[1] = kLowest;
    sum[0] = sum[1] = 0.f;  // of this thread's keys
  }

  /// Scores of 64 keys, of which `count` are there, become weights. They are
  /// powers from a score that is at most kSlack below the greatest, so that
  /// `out` rarely has to shrink; whether it has to is the result. `extras`
  /// knows the keys' own weights, 0 beyond the last, and what dropout keeps.
  template <Extras kExtras, typename Source>
  __device__ __forceinline__ bool weigh(Result& s, int count, float factor,
                                        const Source& extras) {
    const int t = threadIdx.x % 4;
    const bool weighted = kExtras != Extras::kNone && extras.weighted();
    if (weighted) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float2 w = extras.weights(c);
#pragma unroll
        for (int i = 4 * c; i < 4 * c + 4; i += 2) {
          if (!is_live(w.x)) s[i] = -INFINITY;
          if (!is_live(w.y)) s[i + 1] = -INFINITY;
        }
      }
    } else if (count < kRows) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (i / 4 * 8 + 2 * t + i % 2 >= count) s[i] = -INFINITY;
      }
    }
    float high[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      high[0] = fmaxf(high[0], fmaxf(s[i], s[i + 1]));
      high[1] = fmaxf(high[1], fmaxf(s[i + 2], s[i + 3]));
    }
    high[0] *= factor;
    high[1] *= factor;
    const bool rise = __any_sync(
        0xffffffffu, high[0] > top[0] + kSlack || high[1] > top[1] + kSlack);
    if (rise) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float greatest = fmaxf(mma::row_max(high[h]), top[h]);
        shrink[h] = mma::power(top[h] - greatest);
        top[h] = greatest;
        sum[h] *= shrink[h];
      }
      large = __any_sync(0xffffffffu, is_large(top[0]) || is_large(top[1]));
    }
    const float f = factor_of(s, large, factor);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float2 w = weighted ? extras.weights(c) : make_float2(1.f, 1.f);
#pragma unroll
      for (int i = 4 * c; i < 4 * c + 4; i += 2) {
        const int h = i / 2 % 2;
        s[i] = mma::power(fmaf(s[i], f, -top[h]));
        s[i + 1] = mma::power(fmaf(s[i + 1], f, -top[h]));
        if (weighted) {
          s[i] = is_live(w.x) ? s[i] * w.x : 0.f;
          s[i + 1] = is_live(w.y) ? s[i + 1] * w.y : 0.f;
        }
        sum[h] += s[i] + s[i + 1];
      }
    }
    if constexpr (kExtras == Extras::kDropout) {
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] *= extras.keep(i);
    }
    return rise;
  }
  /// No product of `out` is under way.
  __device__ __forceinline__ void shrink_out() {
#pragma unroll
    for (int i = 0; i < 32; ++i) out[i] *= shrink[i / 2 % 2];
  }
};

}  // namespace luna::cuda::softmax_wgmma
