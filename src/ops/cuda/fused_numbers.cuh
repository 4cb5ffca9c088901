#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/fused.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tile.cuh"

// What the fused kernels share. One block a multiprocessor; each of its
// warpgroups works alone on tiles of 64 tokens. Thread (g, t) of warp w has
// tokens 16 w + g and 16 w + g + 8 and projections 2 t and 2 t + 1: what one
// product leaves in its registers is what the next one wants there, if the
// features' order in a product's depth or columns is `place_of_feature`.

namespace luna::cuda::fused {

using namespace hopper;

constexpr int kWidth = 64;
constexpr int kChannels = 8;
constexpr int kProjections = 8;
constexpr int kFeatures = 64;
constexpr int kLd = kWidth + 1;
constexpr int kTokens = 64;  // a warpgroup's tile
constexpr int kRowBytes = 2 * kWidth;
constexpr int kTileBytes = kTokens * kRowBytes;
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kNarrowBytes = kTokens * 16;
constexpr int kSharedBytes = 227 * 1024;  // that a block may have

constexpr int aligned(int bytes) { return (bytes + 15) / 16 * 16; }

/// Two numbers in one register, the first in the low half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float low_of(uint32_t x) {
  return __int_as_float(static_cast<int>(x << 16));
}
__device__ __forceinline__ float high_of(uint32_t x) {
  return __int_as_float(static_cast<int>(x & 0xffff0000u));
}
__device__ __forceinline__ float high_part(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}
/// The larger; a NaN stays one.
__device__ __forceinline__ float at_least(float x, float y) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(r) : "f"(x), "f"(y));
  return r;
}

__device__ __forceinline__ __half2 as_halves(uint32_t x) {
  return *reinterpret_cast<const __half2*>(&x);
}
__device__ __forceinline__ float2 halves(uint32_t x) {
  return __half22float2(as_halves(x));
}
/// Stays in its register, where it would be made again each time.
__device__ __forceinline__ void keep(float& x) { asm volatile("" : "+f"(x)); }
/// Tells the compiler that all threads of the warp have this number.
__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

__device__ __forceinline__ int place_of_feature(int feature) {
  const int m = feature / kChannels, c = feature % kChannels;
  return 16 * (2 * (m % 2) + c / 4) + 8 * (c / 2 % 2) + 2 * (m / 2) + c % 2;
}
/// Columns in this order leave a thread 8 neighbours of a row, twice.
__device__ __forceinline__ int place_of_column(int column) {
  return 32 * (column / 32) + 8 * (column / 2 % 4) + 2 * (column / 8 % 4) +
         column % 2;
}
/// Where column c of row r stands in a swizzled operand, in bytes.
__device__ __forceinline__ int operand_at(int r, int c) {
  return r * kRowBytes + ((c / 8 ^ (r & 7)) << 4) + c % 8 * 2;
}

/// An operand of rows of `kNumbers` numbers, as the copy engine leaves them:
/// wide ones in pieces of 64 numbers, one piece after the other.
template <int kNumbers, int kRows = kTokens>
struct Block {
  static constexpr int kPieces = kNumbers > 64 ? kNumbers / 64 : 1;
  static constexpr int kPieceNumbers = kNumbers / kPieces;
  static constexpr int kRowBytes = 2 * kPieceNumbers;
  static constexpr int kPieceBytes = kRows * kRowBytes;
  static constexpr int kBytes = kPieces * kPieceBytes;
  static constexpr int kSteps = kPieceNumbers / 16;  // of a deep piece
  static constexpr uint32_t kSwizzle = kPieceNumbers == 64 ? 1 : 2;
  static_assert(kPieceNumbers == 64 || kPieceNumbers == 32);

  /// Where numbers 8 i.. of row r stand, in bytes.
  __device__ __forceinline__ static int chunk_at(int r, int i) {
    constexpr int kChunks = kPieceNumbers / 8;
    const int turn = kPieceNumbers == 64 ? r & 7 : r / 2 & 3;
    return i / kChunks * kPieceBytes + r * kRowBytes +
           ((i % kChunks ^ turn) << 4);
  }
  __device__ __forceinline__ static int at(int r, int c) {
    return chunk_at(r, c / 8) + c % 8 * 2;
  }

  struct Deep {
    __device__ explicit Deep(uint32_t address) : first(address) {}
    __device__ __forceinline__ uint64_t step(int k) const {
      return first.step(k % kSteps) + k / kSteps * (kPieceBytes / 16);
    }
    hopper::Operand<32, 16, 8 * kRowBytes, kSwizzle> first;
  };
  struct Wide {
    __device__ explicit Wide(uint32_t address) : first(address) {}
    __device__ __forceinline__ uint64_t step(int k, int piece) const {
      return first.step(k) + piece * (kPieceBytes / 16);
    }
    hopper::Operand<16 * kRowBytes, kPieceBytes, 8 * kRowBytes, kSwizzle> first;
  };
};

}  // namespace luna::cuda::fused
