// Pack: queries are slots, G warps share the tokens they walk; groups of warps
// take turns over the tokens of a piece, and their sums are merged in order.

#include <algorithm>

#include "ops/cuda/softmax_mma_queries.cuh"

namespace luna::cuda::softmax_mma {
namespace {

using T = __nv_bfloat16;

/// Tokens of a group's tile, and tiles on their way.
template <int D, int M, int G>
struct PackShape {
  static constexpr int kGroups = kWarps / G;
  static constexpr int kTokens = G == 1 ? 16 : (G == 2 ? 32 : 64);
  static constexpr int kSeen = G == 1 ? 16 : 32;  // at once
  static constexpr int kStages = D == 128 && G == 1 ? 2 : 3;
  static constexpr int kSlots = 16 * M * G;  // of a block
  static constexpr int kTileBytes = kTokens * Tile<D>::kRowBytes;
  static constexpr size_t kMemory =
      std::max(size_t{kGroups} * kStages * 2 * kTileBytes,
               sizeof(float) * kGroups * kSlots * (D + 2));
};

template <typename T, int D, int M, int G, bool kGeneral>
__global__ void __launch_bounds__(kBlock, M == 1 && D <= 64 ? 2 : 1)
    pack_kernel(SoftmaxForward<float> a) {
  using Shape = PackShape<D, M, G>;
  extern __shared__ __align__(128) unsigned char memory[];
  const SoftmaxProblem<float>& p = a.problem;
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.tokens, number, piece)) return;
  const int warp = threadIdx.x / 32, group = warp / G;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t first_slot = static_cast<int64_t>(blockIdx.y) * Shape::kSlots;
  const int own = warp % G * 16 * M;  // in the block
  const int64_t begin = piece.begin + piece.offset;
  const T* keys = row_pointer<T>(p.key, piece.batch, head, begin);
  const T* values = row_pointer<T>(p.value, piece.batch, head, begin);
  const float* weights = p.weight.data == nullptr
                             ? nullptr
                             : p.weight.data + piece.batch * p.weight.batch +
                                   head * p.weight.head + begin;
  const Keep<float> keep(p.dropout, piece.sequence, head);
  const int count = static_cast<int>(piece.count);
  const int steps = (count + Shape::kTokens - 1) / Shape::kTokens;
  const uint32_t stages = mma::shared_address(memory) +
                          group * Shape::kStages * 2 * Shape::kTileBytes;
  const auto start = [&](int step, int slot) {
    if (step < steps) {
      const int first = step * Shape::kTokens;
      const uint32_t stage = stages + slot * 2 * Shape::kTileBytes;
      const int thread = threadIdx.x % (32 * G);
      Tile<D>::template copy<T, 32 * G>(
          stage, keys + first * p.key.row, p.key.row, Shape::kTokens,
          count - first, static_cast<int>(p.depth), thread);
      Tile<D>::template copy<T, 32 * G>(
          stage + Shape::kTileBytes, values + first * p.value.row, p.value.row,
          Shape::kTokens, count - first, static_cast<int>(p.width), thread);
    }
    mma::commit_copies();
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) {
    start(group + i * Shape::kGroups, i);
  }
  Queries<T, D, M> queries;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    load_left<T, D>(queries.x[m],
                    row_pointer<T>(p.query, p.shared_slots ? 0 : piece.sequence,
                                   head, first_slot),
                    p.query.row, own + 16 * m, p.slots - first_slot,
                    static_cast<int>(p.depth));
  }
  const float factor = p.scale * kLog2E;
  int slot = 0;
  // As many rounds for each group: they wait for each other.
  for (int round = 0; round < steps; round += Shape::kGroups) {
    const int step = round + group;
    mma::wait_copies<Shape::kStages - 2>();
    if constexpr (G == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
    start(step + (Shape::kStages - 1) * Shape::kGroups,
          (slot + Shape::kStages - 1) % Shape::kStages);
    const uint32_t stage = stages + slot * 2 * Shape::kTileBytes;
    const int first = step * Shape::kTokens;
    constexpr int kSeen = Shape::kSeen;
    for (int row = 0; row < Shape::kTokens; row += kSeen) {
      const int left = count - first - row;
      if (left <= 0) break;
      queries.template see<kSeen / 8, kGeneral>(
          stage, stage + Shape::kTileBytes, row, left, factor,
          [&](int key) {
            return weights == nullptr ? 1.f : weights[first + row + key];
          },
          [&](int query, int key) {
            return keep(piece.offset + first + row + key,
                        first_slot + own + query);
          });
    }
    slot = (slot + 1) % Shape::kStages;
  }
  mma::wait_copies<0>();
  __syncthreads();

  // Every group's sums to shared memory, then merged in order.
  constexpr int kLd = D + 2;
  auto* sums = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float* row =
          sums + (group * Shape::kSlots + own + 16 * m + g + 8 * h) * kLd;
#pragma unroll
      for (int c = 0; c < D / 8; ++c) {
        *reinterpret_cast<float2*>(row + 8 * c + 2 * t) =
            make_float2(queries.out[m][c][2 * h], queries.out[m][c][2 * h + 1]);
      }
      const float total = mma::row_sum(queries.sum[m][h]);
      if (t == 0) {
        *reinterpret_cast<float2*>(row + D) =
            make_float2(queries.top[m][h], total);
      }
    }
  }
  __syncthreads();
  const int width = static_cast<int>(p.width);
  const bool whole = a.parts == nullptr;
  const int64_t left = p.slots - first_slot;
  const int rows =
      left < Shape::kSlots ? static_cast<int>(left) : Shape::kSlots;
  for (int row = warp; row < rows; row += kWarps) {
    const float* part = sums + row * kLd;
    constexpr int kStep = Shape::kSlots * kLd;
    float top = kLowest, total = 0.f;
#pragma unroll
    for (int i = 0; i < Shape::kGroups; ++i) {
      top = fmaxf(top, part[i * kStep + D]);
    }
    float shrink[Shape::kGroups];
#pragma unroll
    for (int i = 0; i < Shape::kGroups; ++i) {
      shrink[i] = mma::power(part[i * kStep + D] - top);
      total += shrink[i] * part[i * kStep + D + 1];
    }
    const float inverse = inverse_of(total);
    const int64_t s = first_slot + row;
    for (int n = lane; n < width; n += 32) {
      float x = 0.f;
#pragma unroll
      for (int i = 0; i < Shape::kGroups; ++i) {
        x += shrink[i] * part[i * kStep + n];
      }
      if (whole) {
        const float y = x * inverse;
        store<float>(a.out.data, row_at(a.out, piece.sequence, head, s) + n,
                     a.out.type, y);
        static_cast<float*>(
            a.unrounded
                .data)[row_at(a.unrounded, piece.sequence, head, s) + n] = y;
      } else {
        a.parts[((number * p.heads + head) * p.slots + s) * (width + 2) + n] =
            x;
      }
    }
    if (lane == 0) {
      if (whole) {
        const int64_t at =
            piece.sequence * a.stats_batch + head * a.stats_head + s;
        a.max[at] = total == 0.f ? 0.f : top;
        a.inverse[at] = inverse;
      } else {
        float* end = a.parts +
                     ((number * p.heads + head) * p.slots + s) * (width + 2) +
                     width;
        end[0] = top;
        end[1] = total;
      }
    }
  }
}

// kSplit warps merge one slot's parts: each takes every kSplit-th of them.
template <int kSplit>
__global__ void merge_kernel(SoftmaxForward<float> a) {
  const SoftmaxProblem<float>& p = a.problem;
  constexpr int kRows = kWarps / kSplit;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int own = warp / kSplit * kSplit;  // the first of the slot's warps
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + warp / kSplit;
  const int64_t s = row % p.slots, pair = row / p.slots;
  const int64_t head = pair % p.heads, sequence = pair / p.heads;
  const bool valid = sequence < p.tokens.sequences;
  __shared__ float tops[kWarps], totals[kWarps], sums[kWarps][128];
  const int64_t first = valid ? first_piece(p.tokens, sequence) : 0;
  const int64_t end = valid ? first_piece(p.tokens, sequence + 1) : 0;
  const int width = static_cast<int>(p.width);
  const auto part = [&](int64_t i) {
    return a.parts + ((i * p.heads + head) * p.slots + s) * (width + 2);
  };
  float top = kLowest;
  for (int64_t i = first + threadIdx.x % (32 * kSplit); i < end;
       i += 32 * kSplit) {
    top = fmaxf(top, part(i)[width]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
  }
  if (lane == 0) tops[warp] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSplit; ++i) top = fmaxf(top, tops[own + i]);
  float total = 0.f, x[4] = {};
#pragma unroll 4
  for (int64_t i = first + warp % kSplit; i < end; i += kSplit) {
    const float* from = part(i);
    const float shrink = mma::power(from[width] - top);
    total += shrink * from[width + 1];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (lane + 32 * j < width) x[j] += shrink * from[lane + 32 * j];
    }
  }
  if (lane == 0) totals[warp] = total;
#pragma unroll
  for (int j = 0; j < 4; ++j) sums[warp][lane + 32 * j] = x[j];
  __syncthreads();
  if (!valid) return;
  total = 0.f;
#pragma unroll
  for (int i = 0; i < kSplit; ++i) total += totals[own + i];
  const float inverse = inverse_of(total);
  for (int n = threadIdx.x % (32 * kSplit); n < width; n += 32 * kSplit) {
    float y = 0.f;
#pragma unroll
    for (int i = 0; i < kSplit; ++i) y += sums[own + i][n];
    y *= inverse;
    store<float>(a.out.data, row_at(a.out, sequence, head, s) + n, a.out.type,
                 y);
    static_cast<float*>(
        a.unrounded.data)[row_at(a.unrounded, sequence, head, s) + n] = y;
  }
  if (threadIdx.x % (32 * kSplit) == 0) {
    const int64_t at = sequence * a.stats_batch + head * a.stats_head + s;
    a.max[at] = total == 0.f ? 0.f : top;
    a.inverse[at] = inverse;
  }
}

template <typename T, int D, int M, int G>
void launch_pack(const SoftmaxForward<float>& a, cudaStream_t stream) {
  using Shape = PackShape<D, M, G>;
  static_assert(Shape::kMemory <= kMemoryLimit);
  const SoftmaxProblem<float>& p = a.problem;
  const dim3 grid(static_cast<unsigned>(p.tokens.bound * p.heads),
                  static_cast<unsigned>(blocks_for(p.slots, Shape::kSlots)));
  const bool general = p.weight.data != nullptr || p.dropout.seed != nullptr;
  launch(
      general ? pack_kernel<T, D, M, G, true> : pack_kernel<T, D, M, G, false>,
      grid, Shape::kMemory, a, stream, "softmax_mma_forward, pack");
}

}  // namespace

void merge_parts(const SoftmaxForward<float>& a, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = a.problem;
  const int64_t rows = p.tokens.sequences * p.heads * p.slots;
  if (p.tokens.bound > 8 * p.tokens.sequences) {
    merge_kernel<kWarps><<<static_cast<unsigned>(rows), kBlock, 0, stream>>>(a);
  } else {
    merge_kernel<1><<<static_cast<unsigned>(blocks_for(rows, kWarps)), kBlock,
                      0, stream>>>(a);
  }
  check_launch("softmax_mma_forward, merge");
}

template <int D>
void pack_forward(const SoftmaxForward<float>& a, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = a.problem;
  if (p.tokens.bound > 0) {
    if (p.slots <= 16) {
      launch_pack<T, D, 1, 1>(a, stream);
    } else if (p.slots <= 32) {
      launch_pack<T, D, D == 128 ? 1 : 2, D == 128 ? 2 : 1>(a, stream);
    } else if (p.slots <= 64) {
      launch_pack<T, D, 1, 4>(a, stream);
    } else if (p.slots <= 128) {
      launch_pack<T, D, D == 128 ? 1 : 2, D == 128 ? 8 : 4>(a, stream);
    } else {
      launch_pack<T, D, D == 128 ? 1 : 2, 8>(a, stream);
    }
  }
  if (a.parts != nullptr) merge_parts(a, stream);
}
template void pack_forward<32>(const SoftmaxForward<float>&, cudaStream_t);
template void pack_forward<64>(const SoftmaxForward<float>&, cudaStream_t);
template void pack_forward<128>(const SoftmaxForward<float>&, cudaStream_t);

}  // namespace luna::cuda::softmax_mma
