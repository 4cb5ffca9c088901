// The forward passes. A warp holds 16 or 32 query rows as left operands and
// walks keys in shared memory with an online softmax.
//
// Pack: queries are slots, G warps share the tokens they walk; groups of warps
// take turns over the tokens of a piece, and their sums are merged in order.
// Unpack: queries are tokens, a tile a warp; all slots lie in shared memory.

#include <algorithm>

#include "ops/cuda/softmax_mma.cuh"

namespace luna::cuda {
namespace softmax_mma {
namespace {

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
    const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    Sum s[M][N] = {};
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        Left r;
        Tile<D>::load(r, keys, row + 8 * n, 2 * k);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          mma::add<T>(s[m][n], x[m][k], r[0], r[2]);
          mma::add<T>(s[m][n + 1], x[m][k], r[1], r[3]);
        }
      }
    }
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
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float high[2] = {top[m][0], top[m][1]};
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[m][n][i] = __fmul_rn(s[m][n][i], factor);
          if (kGeneral && !(w[n][i % 2] > 0.f)) s[m][n][i] = -INFINITY;
        }
      }
      if (!kGeneral && count < 8 * N) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (8 * n + 2 * t + i % 2 >= count) s[m][n][i] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          high[i / 2] = fmaxf(high[i / 2], s[m][n][i]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        high[h] = mma::row_max(high[h]);
        const float shrink = mma::power(top[m][h] - high[h]);
        top[m][h] = high[h];
        sum[m][h] *= shrink;
#pragma unroll
        for (int c = 0; c < D / 8; ++c) {
          out[m][c][2 * h] *= shrink;
          out[m][c][2 * h + 1] *= shrink;
        }
      }
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float e = mma::power(s[m][n][i] - high[i / 2]);
          if (kGeneral) e *= w[n][i % 2];
          sum[m][i / 2] += e;  // of this thread's keys
          if (kGeneral && e != 0.f) {
            e *= keep(16 * m + g + 8 * (i / 2), 8 * n + 2 * t + i % 2);
          }
          s[m][n][i] = e;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      Left p[M];
#pragma unroll
      for (int m = 0; m < M; ++m) mma::to_left<T>(p[m], s[m][n], s[m][n + 1]);
#pragma unroll
      for (int c = 0; c < D / 8; c += 2) {
        Left r;
        Tile<D>::load_right(r, values, row + 8 * n, c);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          mma::add<T>(out[m][c], p[m], r[0], r[1]);
          mma::add<T>(out[m][c + 1], p[m], r[2], r[3]);
        }
      }
    }
  }
};

// --- Pack -------------------------------------------------------------------

/// Tokens of a group's tile, and tiles on their way.
template <int D, int M, int G>
struct PackShape {
  static constexpr int kGroups = kWarps / G;
  static constexpr int kTokens = G == 1 ? 16 : 64;
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
  for (int step = group; step < steps; step += Shape::kGroups) {
    mma::wait_copies<Shape::kStages - 2>();
    mma::group_barrier<G>(group);
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
  const SoftmaxProblem<float>& p = a.problem;
  const dim3 grid(static_cast<unsigned>(p.tokens.bound * p.heads),
                  static_cast<unsigned>(blocks_for(p.slots, Shape::kSlots)));
  const bool general = p.weight.data != nullptr || p.dropout.seed != nullptr;
  launch(
      general ? pack_kernel<T, D, M, G, true> : pack_kernel<T, D, M, G, false>,
      grid, Shape::kMemory, a, stream, "softmax_mma_forward, pack");
}

template <typename T, int D>
void pack_forward(const SoftmaxForward<float>& a, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = a.problem;
  if (p.tokens.bound > 0) {
    if (p.slots <= 16) {
      launch_pack<T, D, 1, 1>(a, stream);
    } else if (p.slots <= 32) {
      launch_pack<T, D, D == 128 ? 1 : 2, D == 128 ? 2 : 1>(a, stream);
    } else if (p.slots <= 64) {
      launch_pack<T, D, 1, 4>(a, stream);
    } else {
      launch_pack<T, D, 1, 8>(a, stream);
    }
  }
  if (a.parts == nullptr) return;
  const int64_t rows = p.tokens.sequences * p.heads * p.slots;
  if (p.tokens.bound > 8 * p.tokens.sequences) {
    merge_kernel<kWarps><<<static_cast<unsigned>(rows), kBlock, 0, stream>>>(a);
  } else {
    merge_kernel<1><<<static_cast<unsigned>(blocks_for(rows, kWarps)), kBlock,
                      0, stream>>>(a);
  }
  check_launch("softmax_mma_forward, merge");
}

// --- Unpack -----------------------------------------------------------------

template <int D, int M, int N>
struct UnpackShape {
  static constexpr int kTokens = 16 * M;
  static constexpr int kStages = N == 2 ? 4 : 2;
  static constexpr int kTileBytes = kTokens * Tile<D>::kRowBytes;
  static size_t memory(int64_t slots) {
    return size_t{kWarps} * kStages * kTileBytes +
           2 * padded_slots(slots) * Tile<D>::kRowBytes;
  }
};

template <typename T, int D, int M, int N, bool kGeneral>
__global__ void __launch_bounds__(kBlock, M == 1 ? 2 : 1)
    unpack_kernel(SoftmaxForward<float> a) {
  using Shape = UnpackShape<D, M, N>;
  extern __shared__ __align__(128) unsigned char memory[];
  const SoftmaxProblem<float>& p = a.problem;
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.tokens, number, piece)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const int64_t begin = piece.begin + piece.offset;
  const T* tokens = row_pointer<T>(p.query, piece.batch, head, begin);
  T* out = row_pointer<T>(a.out, piece.batch, head, begin);
  const float* weights = p.weight.data == nullptr
                             ? nullptr
                             : p.weight.data + piece.sequence * p.weight.batch +
                                   head * p.weight.head;
  const Keep<float> keep(p.dropout, piece.sequence, head);
  const int slots = static_cast<int>(p.slots);
  const int padded = (slots + 8 * N - 1) / (8 * N) * (8 * N);
  const int depth = static_cast<int>(p.depth),
            width = static_cast<int>(p.width);
  const uint32_t stages =
      mma::shared_address(memory) + warp * Shape::kStages * Shape::kTileBytes;
  const uint32_t keys =
      mma::shared_address(memory) + kWarps * Shape::kStages * Shape::kTileBytes;
  const uint32_t values = keys + padded * Tile<D>::kRowBytes;
  Tile<D>::template copy<T, kBlock>(
      keys, row_pointer<T>(p.key, piece.sequence, head, 0), p.key.row, padded,
      slots, depth, threadIdx.x);
  Tile<D>::template copy<T, kBlock>(
      values, row_pointer<T>(p.value, piece.sequence, head, 0), p.value.row,
      padded, slots, width, threadIdx.x);
  mma::commit_copies();
  const int count = static_cast<int>(piece.count);
  const int steps = (count + Shape::kTokens - 1) / Shape::kTokens;
  const auto start = [&](int step, int slot) {
    if (step < steps) {
      const int first = step * Shape::kTokens;
      Tile<D>::template copy<T, 32>(stages + slot * Shape::kTileBytes,
                                    tokens + first * p.query.row, p.query.row,
                                    Shape::kTokens, count - first, depth, lane);
    }
    mma::commit_copies();
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) start(warp + i * kWarps, i);
  mma::wait_copies<Shape::kStages - 1>();
  __syncthreads();
  const float factor = p.scale * kLog2E;
  Queries<T, D, M> queries;
  int slot = 0;
  for (int step = warp; step < steps; step += kWarps) {
    __syncwarp();
    start(step + (Shape::kStages - 1) * kWarps,
          (slot + Shape::kStages - 1) % Shape::kStages);
    mma::wait_copies<Shape::kStages - 1>();
    __syncwarp();
    const uint32_t stage = stages + slot * Shape::kTileBytes;
    const int first = step * Shape::kTokens;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        Tile<D>::load(queries.x[m][k], stage, 16 * m, 2 * k);
      }
    }
    queries.clear();
#pragma unroll 1
    for (int row = 0; row < slots; row += 8 * N) {
      queries.template see<N, kGeneral>(
          keys, values, row, slots - row, factor,
          [&](int key) {
            return weights == nullptr ? 1.f : weights[row + key];
          },
          [&](int query, int key) {
            return keep(piece.offset + first + query, row + key);
          });
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float inverse = inverse_of(mma::row_sum(queries.sum[m][h]));
#pragma unroll
        for (int c = 0; c < D / 8; ++c) {
          Tile<D>::put(stage, 16 * m + g + 8 * h, c,
                       mma::pack<T>(queries.out[m][c][2 * h] * inverse,
                                    queries.out[m][c][2 * h + 1] * inverse));
        }
      }
    }
    __syncwarp();
    Tile<D>::template store<T>(stage, out + first * a.out.row, a.out.row,
                               Shape::kTokens, count - first, width);
    slot = (slot + 1) % Shape::kStages;
  }
}

template <typename T, int D, int M, int N>
void launch_unpack(const SoftmaxForward<float>& a, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = a.problem;
  const bool general = p.weight.data != nullptr || p.dropout.seed != nullptr;
  launch(general ? unpack_kernel<T, D, M, N, true>
                 : unpack_kernel<T, D, M, N, false>,
         static_cast<unsigned>(p.tokens.bound * p.heads),
         UnpackShape<D, M, N>::memory(p.slots), a, stream,
         "softmax_mma_forward, unpack");
}

template <typename T, int D>
void unpack_forward(const SoftmaxForward<float>& a, cudaStream_t stream) {
  if (a.problem.tokens.bound == 0) return;
  if (a.problem.slots <= 16) {
    launch_unpack<T, D, 1, 2>(a, stream);
  } else {
    launch_unpack<T, D, 1, 4>(a, stream);
  }
}

}  // namespace

size_t forward_memory(const SoftmaxShape& s, bool pack) {
  if (pack) return 0;  // it does not grow with the slots
  switch (padded(std::max(s.depth, s.width))) {
    case 32:
      return UnpackShape<32, 1, 4>::memory(s.slots);
    case 64:
      return UnpackShape<64, 1, 4>::memory(s.slots);
    default:
      return UnpackShape<128, 1, 4>::memory(s.slots);
  }
}

}  // namespace softmax_mma

void softmax_mma_forward(const SoftmaxForward<float>& a, cudaStream_t stream) {
  using namespace softmax_mma;
  const SoftmaxProblem<float>& p = a.problem;
  if (p.heads == 0 || p.tokens.sequences == 0) return;
  using T = __nv_bfloat16;
  switch (padded(std::max(p.depth, p.width))) {
    case 32:
      return p.pack ? pack_forward<T, 32>(a, stream)
                    : unpack_forward<T, 32>(a, stream);
    case 64:
      return p.pack ? pack_forward<T, 64>(a, stream)
                    : unpack_forward<T, 64>(a, stream);
    default:
      return p.pack ? pack_forward<T, 128>(a, stream)
                    : unpack_forward<T, 128>(a, stream);
  }
}

}  // namespace luna::cuda
