// The way back from phi's gradient, by tiles.
//
// A thread that looks psi up in the forward does so here, for du and for the
// sums of g and g u per channel and segment between its own knots. dx = du W
// and dW += du^T x are products of the tile in shared memory.
//
// The sums are 64-bit integers as two words in shared memory, so that their
// order does not matter, in units that follow the largest gradient and a bound
// of |u|: a block adds at most 2^n numbers below 2^(61 - n). Copies of each
// serve different lanes, so that few wait for others.

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/cuda/feature_tiles.cuh"

namespace luna::cuda {
namespace {

using namespace features;

// Tops: bits of the largest |g| and |x|. As integers they are in order, a NaN
// above all.
__device__ __forceinline__ int magnitude(float x) {
  return __float_as_int(fabsf(x));
}

/// Index: unsigned, of as many bits as the numbers of x need.
template <typename Index>
__global__ void __launch_bounds__(kThreads)
    largest_kernel(const __grid_constant__ FeatureRows r, int width,
                   bool x_in_fours, const __grid_constant__ Rows g,
                   int64_t gradients, bool g_in_fours, int* tops) {
  __shared__ int block_tops[2];
  if (threadIdx.x < 2) block_tops[threadIdx.x] = 0;
  __syncthreads();
  const int64_t own = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t all = static_cast<int64_t>(gridDim.x) * kThreads;
  int top[2] = {0, 0};
  const auto see = [](int& most, float x) { most = max(most, magnitude(x)); };
  const auto see_four = [&](int& most, const RawNumbers<4>& x, Scalar type) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 y = x.pair(i, type);
      see(most, y.x);
      see(most, y.y);
    }
  };
  if (g_in_fours) {
    constexpr int kBatch = 4;
    for (int64_t i = own; i < gradients / 4; i += kBatch * all) {
      RawNumbers<4> x[kBatch] = {};
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int64_t at = i + j * all;
        if (at < gradients / 4) x[j].load(g.data, 4 * at, g.type);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) see_four(top[0], x[j], g.type);
    }
  } else {
    for (int64_t i = own; i < gradients; i += all) {
      see(top[0], load<float>(g.data, i, g.type));
    }
  }
  const int lane = threadIdx.x % 32;
  const int steps = x_in_fours ? width / 4 : width;
  const auto rows = static_cast<Index>(r.batch * r.heads * r.length);
  const auto length = static_cast<Index>(r.length);
  const auto heads = static_cast<Index>(r.heads);
  const auto count = rows * static_cast<Index>(steps);
#pragma unroll 4
  for (auto i = static_cast<Index>(own); i < count;
       i += static_cast<Index>(all)) {
    const Index row = i / static_cast<Index>(steps), bh = row / length;
    const Index batch = bh / heads;
    const int64_t at =
        row_at(r.x, batch, bh - batch * heads, row - bh * length);
    const auto step = static_cast<int>(i - row * static_cast<Index>(steps));
    if (x_in_fours) {
      RawNumbers<4> x;
      x.load(r.x.data, at + 4 * step, r.x.type);
      see_four(top[1], x, r.x.type);
    } else {
      see(top[1], load<float>(r.x.data, at + step, r.x.type));
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int most = __reduce_max_sync(0xffffffffu, top[i]);
    if (lane == 0) atomicMax(&block_tops[i], most);
  }
  __syncthreads();
  if (threadIdx.x < 2) {
    atomicMax(&tops[threadIdx.x], block_tops[threadIdx.x]);
  }
}

constexpr int kLeastExponent = -80, kMostExponent = 150, kNoExponent = 129;

/// The least e with x <= 2^e; kNoExponent where x is not finite.
__device__ __forceinline__ int exponent_above(int bits) {
  const int e = ((bits + 0x7fffff) >> 23) - 127;
  return bits >= 0x7f800000 ? kNoExponent : max(e, kLeastExponent);
}
__device__ __forceinline__ float power_of_two(int e) {
  return __int_as_float((e + 127) << 23);
}

/// Adds numbers, all on their way at once; zeros are left out.
template <int kCount>
__device__ __forceinline__ void add_wide(uint32_t* low, uint32_t* high,
                                         const int (&at)[kCount],
                                         const float (&x)[kCount]) {
  uint32_t part[kCount], rest[kCount], before[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const long long q = __float2ll_rn(x[i]);
    part[i] = static_cast<uint32_t>(q);
    rest[i] = static_cast<uint32_t>(q >> 32);
    before[i] = 0;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (part[i] != 0) before[i] = atomicAdd(low + at[i], part[i]);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    rest[i] += before[i] + part[i] < part[i] ? 1 : 0;  // the carry
    if (rest[i] != 0) atomicAdd(high + at[i], rest[i]);
  }
}

/// psi by channel, from its table: how many of a channel's knots are below a
/// segment, and its lines between them.
__global__ void own_kernel(TableShape s, const float* table, float2* lines,
                           uint16_t* index) {
  const int64_t own = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto* all_ranks = reinterpret_cast<const int32_t*>(table + s.rank_at);
  const auto ranks_of = [&](int64_t channel) {
    return all_ranks + (same_knots(s) ? 0 : channel * s.hidden);
  };
  const int64_t lines_each = sum_segments(s, Knots::kOwn);
  const int64_t entries = index_entries(s);
  if (own < entries) {
    const int32_t* ranks = ranks_of(own % s.channels);
    const int64_t segment = own / s.channels;
    int below = 0;
#pragma unroll 8
    for (int64_t j = 0; j < s.hidden; ++j) below += ranks[j] < segment ? 1 : 0;
    index[own] = static_cast<uint16_t>(below);
    return;
  }
  // Segment 0, and the one behind each of the channel's knots.
  const int64_t line = own - entries;
  if (line >= s.channels * lines_each) return;
  const int64_t c = line / lines_each, knot = line % lines_each - 1;
  int64_t segment = 0, place = 0;
  if (knot >= 0) {
    const int32_t* ranks = ranks_of(c);
    segment = ranks[knot] + 1;
    place = 1;
    for (int64_t j = 0; j < s.hidden; ++j) {
      // Knots that are no numbers share a rank; each has a line all the same.
      const bool before =
          ranks[j] < ranks[knot] || (ranks[j] == ranks[knot] && j < knot);
      place += before ? 1 : 0;
    }
  }
  const float* row = table + s.rows_at + segment * 2 * s.channels;
  lines[c * lines_each + place] = make_float2(row[c], row[s.channels + c]);
}

struct BackwardArguments {
  FeatureRows r;
  Rows grad_phi, grad_x;
  const float2* lines;    ///< psi by channel (feature_tiles.cuh)
  const uint16_t* index;  ///< null: all channels have the same knots
  float* partials;
  int64_t size;
  const int* tops;
  int unit_bits;  ///< of the largest number
  bool x_in_fours;
};

/// The block's sums of g and g u.
struct OwnSums {
  __device__ OwnSums(const FeatureMap<float>& map, const FeatureTiles& tiles,
                     int unit_bits, float* memory)
      : channels(static_cast<int>(map.shape.channels)),
        segments(static_cast<int>(sum_segments(map.shape, Knots::kOwn))),
        copies(tiles.copies),
        first(static_cast<int>(blockIdx.z) * tiles.channels),
        last(min(first + tiles.channels, channels)),
        unit_bits(unit_bits),
        low(reinterpret_cast<uint32_t*>(memory + tiles.low)),
        high(reinterpret_cast<uint32_t*>(memory + tiles.high)) {
    for (int i = threadIdx.x; i < tiles.channels * segments * 2 * copies;
         i += kThreads) {
      low[i] = high[i] = 0;
    }
  }
  __device__ void choose_units(int top_g, int top_u) {
    g_exponent = exponent_above(top_g);
    const int u_exponent = exponent_above(top_u);
    // One more: the bound itself is rounded.
    gu_exponent = max(g_exponent + u_exponent + 1, kLeastExponent);
    finite = g_exponent < kNoExponent && u_exponent < kNoExponent &&
             gu_exponent <= kMostExponent;
    units = power_of_two(finite ? unit_bits - g_exponent : 0);
    units_u = power_of_two(finite ? unit_bits - gu_exponent : 0);
  }
  __device__ __forceinline__ bool has(int channel) const {
    return channel >= first && channel < last;
  }
  __device__ __forceinline__ int place(int channel, int segment) const {
    return ((channel - first) * segments + segment) * 2 * copies +
           static_cast<int>(threadIdx.x) % copies;
  }
  /// Adds g and g u at their places.
  template <int kCount>
  __device__ __forceinline__ void add(const int (&at)[kCount],
                                      const float (&g)[kCount],
                                      const float (&u)[kCount]) {
    float x[kCount], x_u[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      x[k] = g[k] * units;
      x_u[k] = g[k] * units_u * u[k];
    }
    add_wide(low, high, at, x);
    add_wide(low + copies, high + copies, at, x_u);
  }
  /// Into the block's part: segments by rows of 2 x channels. By the whole
  /// block, behind a barrier.
  __device__ void put(float* part, float factor) const {
    const int own = last - first;
    for (int i = threadIdx.x; i < segments * 2 * own; i += kThreads) {
      const int segment = i / (2 * own), column = i % (2 * own);
      const bool with_u = column >= own;
      const int c = with_u ? column - own : column;
      const int at = ((c * segments + segment) * 2 + (with_u ? 1 : 0)) * copies;
      int64_t total = 0;
      for (int k = 0; k < copies; ++k) {
        total += static_cast<int64_t>(
            static_cast<uint64_t>(high[at + k]) << 32 | low[at + k]);
      }
      const int exponent = (with_u ? gu_exponent : g_exponent) - unit_bits;
      part[segment * 2 * channels + (with_u ? channels : 0) + first + c] =
          finite ? static_cast<float>(
                       ldexp(static_cast<double>(total), exponent) * factor)
                 : NAN;
    }
  }

  int channels, segments, copies, first, last, unit_bits;
  uint32_t *low, *high;  ///< [channels, segments, 2, copies]
  int g_exponent = 0, gu_exponent = 0;
  float units = 0.f, units_u = 0.f;
  bool finite = true;
};

/// Blocks along z have the sums of tiles.channels each; the first has
/// everything else.
template <bool kExact, Channels kKind>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(const __grid_constant__ FeatureMap<float> map,
                    const __grid_constant__ FeatureTiles tiles,
                    const __grid_constant__ BackwardArguments p) {
  constexpr int kAtOnce = at_once(kKind);
  constexpr int kNeighbours = kKind == Channels::kEights ? 8 : 2;
  extern __shared__ __align__(16) float memory[];
  __shared__ int largest_u;
  const int64_t head = blockIdx.y, part = blockIdx.x, parts = gridDim.x;
  const bool leads = blockIdx.z == 0;
  const int m_count = static_cast<int>(map.projections);
  const int channels = static_cast<int>(map.shape.channels);
  const int width = static_cast<int>(map.width);
  const int stride = tiles.columns + 8, tokens = tiles.token_warps * 16;
  const int du_stride = tiles.rows + 8;
  const float* x_rows = memory + tiles.x;
  const float* weights = memory + tiles.weights;
  float* du = memory + tiles.du;
  float* grad_weights = memory + tiles.grad_weights;

  copy_weights(map, tiles, head, memory);
  Table::copy(map, tiles, memory);
  const Table table(map, tiles, memory);
  OwnSums sums(map, tiles, p.unit_bits, memory);
  for (int i = threadIdx.x; i < tiles.rows * stride; i += kThreads) {
    grad_weights[i] = 0.f;
  }
  for (int i = threadIdx.x; i < tokens * du_stride; i += kThreads) du[i] = 0.f;
  if (threadIdx.x == 0) largest_u = 0;
  const float2* lines = p.lines;
  if (tiles.lines_near) {
    auto* near = reinterpret_cast<float2*>(memory + tiles.lines);
    batched<8>(
        channels * sums.segments, [&](int i) { return p.lines[i]; },
        [&](int i, float2 x) { near[i] = x; });
    lines = near;
  }
  const uint16_t* index = p.index;
  if (index != nullptr && tiles.index_near) {
    const auto* from = reinterpret_cast<const uint32_t*>(p.index);
    batched<8>(
        static_cast<int>(own_index(map.shape)), [&](int i) { return from[i]; },
        [&](int i, uint32_t x) {
          reinterpret_cast<uint32_t*>(memory + tiles.index)[i] = x;
        });
    index = reinterpret_cast<const uint16_t*>(memory + tiles.index);
  }
  __syncthreads();
  const float largest_x = __int_as_float(p.tops[1]);
  for (int m = threadIdx.x; m < m_count; m += kThreads) {
    float most = fabsf(memory[tiles.biases + m]);
    for (int j = 0; j < width; ++j) {
      most = fmaf(fabsf(weights[m * stride + j]), largest_x, most);
    }
    atomicMax(&largest_u, magnitude(most));
  }
  __syncthreads();
  sums.choose_units(p.tops[0], largest_u);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int token = warp % tiles.token_warps * 16;
  const int per_warp =
      (m_count + 8 * tiles.projection_warps - 1) / (8 * tiles.projection_warps);
  const int from = warp / tiles.token_warps * per_warp;
  const int to = min(from + per_warp, (m_count + 7) / 8);
  // du, of all channels, only the first makes.
  const int first_channel = leads ? 0 : sums.first;
  const int last_channel = leads ? channels : sums.last;
  float* part_sums = p.partials + (head * parts + part) * p.size;
  const int64_t per_batch = (p.r.length + tokens - 1) / tokens;
  for (int64_t tile = part; tile < p.r.batch * per_batch; tile += parts) {
    const int64_t batch = tile / per_batch, first = tile % per_batch * tokens;
    const int64_t left = p.r.length - first;
    const int count = left < tokens ? static_cast<int>(left) : tokens;
    __syncthreads();
    copy_rows(p.r, batch, head, first, count, width, p.x_in_fours, tiles,
              memory + tiles.x);
    __syncthreads();
    const int64_t up = row_at(p.grad_phi, batch, head, first + token + g);
    for (int eight = from; eight < to; eight += kAtOnce) {
      const auto is_there = [&](int j, int i) {
        return token + g + i / 2 * 8 < count && eight + j < to &&
               8 * (eight + j) + 2 * t + i % 2 < m_count;
      };
      // Of one channel a row's two, of eights a row and a projection's first.
      constexpr int kGradients = kKind == Channels::kEights ? 4 : 2;
      RawNumbers<kNeighbours> gradients[kAtOnce][kGradients] = {};
      const auto load_gradients = [&](int c) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
          for (int k = 0; k < kGradients; ++k) {
            const int i = kGradients == 4 ? k : 2 * k;
            if (!is_there(j, i)) continue;
            const int m = 8 * (eight + j) + 2 * t + i % 2;
            gradients[j][k].load(
                p.grad_phi.data,
                up + i / 2 * 8 * p.grad_phi.row + m * channels + c,
                p.grad_phi.type);
          }
        }
      };
      if constexpr (kKind != Channels::kAny) load_gradients(first_channel);
      float u[kAtOnce][4];
      project<kExact, kAtOnce>(
          x_rows + token * stride, weights + 8 * eight * stride,
          memory + tiles.biases + 8 * eight, tiles, to - eight, u);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (eight + j >= to) break;
        int segment[4];
        table.find(u[j], segment);
        float total[4] = {0.f, 0.f, 0.f, 0.f};
        // A feature that was cut to 0 has no gradient.
        const auto live = [&](int i, float2 line) {
          return !map.nonneg || line.x * u[j][i] + line.y > 0.f;
        };
        if constexpr (kKind == Channels::kOne) {
          float x[4];
          int at[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 line = lines[segment[i]];
            const float2 pair = gradients[j][i / 2].pair(0, p.grad_phi.type);
            x[i] = i % 2 == 0 ? pair.x : pair.y;
            if (!is_there(j, i) || !live(i, line)) x[i] = 0.f;
            total[i] = x[i] * line.x;
            at[i] = sums.place(0, segment[i]);
          }
          sums.add(at, x, u[j]);
        } else if constexpr (kKind == Channels::kEights) {
          for (int c = first_channel; c < last_channel; c += 8) {
            if (c > first_channel) load_gradients(c);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              int own[8];
              if (index == nullptr) {
#pragma unroll
                for (int k = 0; k < 8; ++k) own[k] = segment[i];
              } else {
                const auto eight_own = *reinterpret_cast<const uint4*>(
                    index + segment[i] * channels + c);
                const uint32_t pairs[4] = {eight_own.x, eight_own.y,
                                           eight_own.z, eight_own.w};
#pragma unroll
                for (int k = 0; k < 8; ++k) {
                  own[k] = static_cast<int>(k % 2 == 0 ? pairs[k / 2] & 0xffffu
                                                       : pairs[k / 2] >> 16);
                }
              }
              const bool there = is_there(j, i);
              float x[8], same_u[8];
              int at[8];
#pragma unroll
              for (int k = 0; k < 8; ++k) {
                const float2 line = lines[(c + k) * sums.segments + own[k]];
                const float2 pair =
                    gradients[j][i].pair(k / 2, p.grad_phi.type);
                x[k] = k % 2 == 0 ? pair.x : pair.y;
                if (!there || !live(i, line)) x[k] = 0.f;
                total[i] = fmaf(x[k], line.x, total[i]);
                same_u[k] = u[j][i];
                at[k] = sums.place(c + k, own[k]);
              }
              if (sums.has(c)) sums.add(at, x, same_u);
            }
          }
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (!is_there(j, i)) continue;
            const int m = 8 * (eight + j) + 2 * t + i % 2;
            for (int c = first_channel; c < last_channel; ++c) {
              const int own = index == nullptr
                                  ? segment[i]
                                  : index[segment[i] * channels + c];
              const float2 line = lines[c * sums.segments + own];
              if (!live(i, line)) continue;
              const float x[1] = {load<float>(
                  p.grad_phi.data,
                  up + i / 2 * 8 * p.grad_phi.row + m * channels + c,
                  p.grad_phi.type)};
              total[i] = fmaf(x[0], line.x, total[i]);
              if (!sums.has(c)) continue;
              const int at[1] = {sums.place(c, own)};
              const float same_u[1] = {u[j][i]};
              sums.add(at, x, same_u);
            }
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          du[(token + g + i / 2 * 8) * du_stride + 8 * (eight + j) + 2 * t +
             i % 2] = total[i] * map.factor;
        }
      }
    }
    if (!leads) continue;
    __syncthreads();
    if constexpr (kExact) {
      for (int i = threadIdx.x; i < count * width; i += kThreads) {
        const int row = i / width, j = i % width;
        float total = 0.f;
        for (int m = 0; m < m_count; ++m) {
          total = fmaf(du[row * du_stride + m], weights[m * stride + j], total);
        }
        store<float>(p.grad_x.data,
                     row_at(p.grad_x, batch, head, first + row) + j,
                     p.grad_x.type, total);
      }
      for (int i = threadIdx.x; i < m_count * (width + 1); i += kThreads) {
        const int m = i / (width + 1), column = i % (width + 1);
        const int j = column < width ? column : tiles.columns;
        float total = 0.f;
        for (int row = 0; row < count; ++row) {
          total =
              fmaf(du[row * du_stride + m], x_rows[row * stride + j], total);
        }
        grad_weights[m * stride + j] += total;
      }
    } else {
      const int column_tiles = tiles.columns / 8;
      for (int i = warp; i < tiles.token_warps * column_tiles; i += kWarps) {
        const int row = i / column_tiles * 16, j = i % column_tiles * 8;
        if (row >= count || j >= width) continue;
        mma::Sum sum = {};
        for (int k = 0; k < tiles.rows; k += 16) {
          SplitLeft steps;
          load_left(steps, du + row * du_stride + k, du_stride);
          const float* w = weights + (k + 2 * t) * stride + j + g;
          multiply(sum, steps, Split(w[0], w[stride]),
                   Split(w[8 * stride], w[9 * stride]));
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int own = row + g + k / 2 * 8, column = j + 2 * t + k % 2;
          if (own < count && column < width) {
            store<float>(p.grad_x.data,
                         row_at(p.grad_x, batch, head, first + own) + column,
                         p.grad_x.type, sum[k]);
          }
        }
      }
      // Tokens in an order that keeps them in different banks.
      for (int i = warp; i < tiles.rows / 16 * (column_tiles + 1);
           i += kWarps) {
        const int m = i / (column_tiles + 1) * 16;
        const int j = i % (column_tiles + 1) * 8;
        float* at = grad_weights + (m + g) * stride + j + 2 * t;
        mma::Sum sum = {at[0], at[1], at[8 * stride], at[8 * stride + 1]};
        for (int k = 0; k < tokens; k += 16) {
          SplitLeft steps;
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            const float* d =
                du + (k + t + q / 2 * 8) * du_stride + m + g + q % 2 * 8;
            steps.put(q, Split(d[0], d[4 * du_stride]));
          }
          const float* x = x_rows + (k + t) * stride + j + g;
          multiply(sum, steps, Split(x[0], x[4 * stride]),
                   Split(x[8 * stride], x[12 * stride]));
        }
        at[0] = sum[0];
        at[1] = sum[1];
        at[8 * stride] = sum[2];
        at[8 * stride + 1] = sum[3];
      }
    }
  }

  __syncthreads();
  sums.put(part_sums, map.factor);
  if (!leads) return;
  float* own = part_sums + sums.segments * 2 * channels;
  for (int i = threadIdx.x; i < m_count * width; i += kThreads) {
    own[i] = grad_weights[i / width * stride + i % width];
  }
  for (int m = threadIdx.x; m < m_count; m += kThreads) {
    own[m_count * width + m] = grad_weights[m * stride + tiles.columns];
  }
}

template <bool kExact>
auto backward_for(Channels kind) {
  return kind == Channels::kOne ? backward_kernel<kExact, Channels::kOne>
         : kind == Channels::kEights
             ? backward_kernel<kExact, Channels::kEights>
             : backward_kernel<kExact, Channels::kAny>;
}

}  // namespace

void feature_tiles_backward(const FeatureMap<float>& map,
                            const FeatureRows& rows, const Rows& grad_phi,
                            const Rows& grad_x, float* partials, int64_t parts,
                            float* scratch, cudaStream_t stream) {
  const TableShape& s = map.shape;
  FeatureTiles tiles;
  cut_feature_tiles(map, true, tiles);
  const int64_t tokens = rows.batch * rows.length;
  const bool x_in_fours = in_fours(rows.x, map.width);
  const int64_t gradients = tokens * rows.heads * map.features();
  const Rows flat = {grad_phi.data, 0, 0, 0, grad_phi.type};
  auto* tops = reinterpret_cast<int*>(scratch);
  auto* lines = reinterpret_cast<float2*>(scratch + kScratchTops);
  auto* index = reinterpret_cast<uint16_t*>(scratch + kScratchTops +
                                            up_to_four(own_lines(s)));
  cudaMemsetAsync(tops, 0, 2 * sizeof(int), stream);
  if (gradients > 0) {
    const int64_t blocks =
        std::clamp<int64_t>(blocks_for(gradients, 16 * kThreads), 1, 1056);
    const bool small = tokens * rows.heads * map.width < int64_t{1} << 31;
    const auto largest =
        small ? largest_kernel<uint32_t> : largest_kernel<uint64_t>;
    largest<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        rows, static_cast<int>(map.width), x_in_fours, flat, gradients,
        in_fours(flat, gradients), tops);
    check_launch("feature_map_backward, scale");
  }
  const dim3 grid(
      static_cast<unsigned>(parts), static_cast<unsigned>(rows.heads),
      static_cast<unsigned>(blocks_for(s.channels, tiles.channels)));
  if (grid.y == 0 || grid.z == 0) return;
  const int64_t entries =
      index_entries(s) + s.channels * sum_segments(s, Knots::kOwn);
  own_kernel<<<static_cast<unsigned>(blocks_for(entries, kThreads)), kThreads,
               0, stream>>>(s, map.table, lines, index);
  check_launch("feature_map_backward, channels");
  const int64_t count = rows.batch * blocks_for(rows.length, tiles.tokens());
  const auto added = static_cast<uint64_t>(blocks_for(count, parts) *
                                           tiles.tokens() * map.projections);
  const int unit_bits =
      std::min(40, 61 - static_cast<int>(std::bit_width(added)));
  Channels kind = channels_of(map, grad_phi);
  if (kind == Channels::kEights && tiles.channels % 8 != 0) {
    kind = Channels::kAny;
  }
  const auto kernel = rows.x.type == Scalar::kFloat ? backward_for<true>(kind)
                                                    : backward_for<false>(kind);
  const auto bytes = static_cast<int>(tiles.floats * sizeof(float));
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       bytes);
  kernel<<<grid, kThreads, bytes, stream>>>(
      map, tiles,
      BackwardArguments{rows, grad_phi, grad_x, lines,
                        same_knots(s) ? nullptr : index, partials,
                        feature_sums_size(map, Knots::kOwn), tops, unit_bits,
                        x_in_fours});
  check_launch("feature_map_backward");
}

}  // namespace luna::cuda
