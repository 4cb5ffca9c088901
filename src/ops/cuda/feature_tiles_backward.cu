// The way back from phi's gradient, by tiles.
//
// A thread that looks psi up in the forward does so here, for du and for the
// sums of g and g u per segment and channel. dx = du W and dW += du^T x are
// products of the tile in shared memory.
//
// The sums are 64-bit integers as two words in shared memory, so that their
// order does not matter, in units that follow the largest gradient and a bound
// of |u|: a block adds at most 2^n numbers below 2^(62 - n).

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

/// Adds 8 numbers, all on their way at once; zeros are left out.
__device__ __forceinline__ void add_wide(uint32_t* low, uint32_t* high,
                                         const int (&at)[8],
                                         const float (&x)[8]) {
  uint32_t part[8], rest[8], before[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const long long q = __float2ll_rn(x[i]);
    part[i] = static_cast<uint32_t>(q);
    rest[i] = static_cast<uint32_t>(q >> 32);
    before[i] = 0;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (part[i] != 0) before[i] = atomicAdd(low + at[i], part[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    rest[i] += before[i] + part[i] < part[i] ? 1 : 0;  // the carry
    if (rest[i] != 0) atomicAdd(high + at[i], rest[i]);
  }
}

__device__ __forceinline__ void add_wide(uint32_t* low, uint32_t* high, int at,
                                         float x) {
  const long long q = __float2ll_rn(x);
  const auto part = static_cast<uint32_t>(q);
  const uint32_t before = atomicAdd(low + at, part);
  const uint32_t rest =
      static_cast<uint32_t>(q >> 32) + (before + part < part ? 1 : 0);
  if (rest != 0) atomicAdd(high + at, rest);
}

struct BackwardArguments {
  FeatureRows r;
  Rows grad_phi, grad_x;
  float* partials;
  int64_t size;
  const int* tops;
  int unit_bits;  ///< of the largest number
  bool x_in_fours;
};

/// Blocks along z have the sums of tiles.channels each; the first has
/// everything else.
template <bool kExact, Channels kKind>
__global__ void __launch_bounds__(kThreads, kKind == Channels::kOne ? 2 : 1)
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
  const int segments = static_cast<int>(map.shape.knots) + 1;
  const int width = static_cast<int>(map.width);
  const int stride = tiles.columns + 8, tokens = tiles.token_warps * 16;
  const int du_stride = tiles.rows + 8;
  const float* x_rows = memory + tiles.x;
  const float* weights = memory + tiles.weights;
  float* du = memory + tiles.du;
  float* grad_weights = memory + tiles.grad_weights;
  auto* low = reinterpret_cast<uint32_t*>(memory + tiles.low);
  auto* high = reinterpret_cast<uint32_t*>(memory + tiles.high);
  const int sum_row = 2 * tiles.channels + 1;
  const int first_channel = static_cast<int>(blockIdx.z) * tiles.channels;
  const int last_channel = min(first_channel + tiles.channels, channels);

  copy_weights(map, tiles, head, memory);
  Table::copy(map, tiles, memory);
  const Table table(map, tiles, memory);
  for (int i = threadIdx.x; i < segments * sum_row * tiles.copies;
       i += kThreads) {
    low[i] = high[i] = 0;
  }
  for (int i = threadIdx.x; i < tiles.rows * stride; i += kThreads) {
    grad_weights[i] = 0.f;
  }
  for (int i = threadIdx.x; i < tokens * du_stride; i += kThreads) du[i] = 0.f;
  if (threadIdx.x == 0) largest_u = 0;
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
  const int g_exponent = exponent_above(p.tops[0]);
  const int u_exponent = exponent_above(largest_u);
  // One more: the bound itself is rounded.
  const int gu_exponent = max(g_exponent + u_exponent + 1, kLeastExponent);
  const bool finite = g_exponent < kNoExponent && u_exponent < kNoExponent &&
                      gu_exponent <= kMostExponent;
  const float units = power_of_two(finite ? p.unit_bits - g_exponent : 0);
  const float units_u = power_of_two(finite ? p.unit_bits - gu_exponent : 0);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int token = warp % tiles.token_warps * 16;
  const int per_warp =
      (m_count + 8 * tiles.projection_warps - 1) / (8 * tiles.projection_warps);
  const int from = warp / tiles.token_warps * per_warp;
  const int to = min(from + per_warp, (m_count + 7) / 8);
  const int copy = lane % tiles.copies;
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
      if constexpr (kKind != Channels::kAny) load_gradients(0);
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
        const auto live = [&](int i, float slope, float intercept) {
          return !map.nonneg || slope * u[j][i] + intercept > 0.f;
        };
        if constexpr (kKind == Channels::kOne) {
          float sums[8];
          int at[8];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 line =
                reinterpret_cast<const float2*>(table.rows)[segment[i]];
            const float2 pair = gradients[j][i / 2].pair(0, p.grad_phi.type);
            float x = i % 2 == 0 ? pair.x : pair.y;
            if (!is_there(j, i) || !live(i, line.x, line.y)) x = 0.f;
            total[i] = x * line.x;
            sums[2 * i] = x * units;
            sums[2 * i + 1] = x * units_u * u[j][i];
            at[2 * i] = segment[i] * sum_row * tiles.copies + copy;
            at[2 * i + 1] = at[2 * i] + tiles.copies;
          }
          add_wide(low, high, at, sums);
        } else if constexpr (kKind == Channels::kEights) {
          for (int c = 0; c < channels; c += 8) {
            if (c > 0) load_gradients(c);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float* line = table.rows + segment[i] * 2 * channels + c;
              float sums[8], sums_u[8];
              int at[8], at_u[8];
#pragma unroll
              for (int k = 0; k < 8; k += 4) {
                const auto s4 = *reinterpret_cast<const float4*>(line + k);
                const auto b4 =
                    *reinterpret_cast<const float4*>(line + channels + k);
                const float slopes[4] = {s4.x, s4.y, s4.z, s4.w};
                const float intercepts[4] = {b4.x, b4.y, b4.z, b4.w};
#pragma unroll
                for (int l = 0; l < 4; ++l) {
                  const float2 pair =
                      gradients[j][i].pair((k + l) / 2, p.grad_phi.type);
                  float x = l % 2 == 0 ? pair.x : pair.y;
                  if (!is_there(j, i) || !live(i, slopes[l], intercepts[l])) {
                    x = 0.f;
                  }
                  total[i] = fmaf(x, slopes[l], total[i]);
                  const int own = c + k + l - first_channel;
                  if (own < 0 || own >= tiles.channels) x = 0.f;
                  sums[k + l] = x * units;
                  sums_u[k + l] = x * units_u * u[j][i];
                  const int place = max(0, min(own, tiles.channels - 1));
                  at[k + l] =
                      (segment[i] * sum_row + place) * tiles.copies + copy;
                  at_u[k + l] = at[k + l] + tiles.channels * tiles.copies;
                }
              }
              add_wide(low, high, at, sums);
              add_wide(low, high, at_u, sums_u);
            }
          }
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (!is_there(j, i)) continue;
            const float* line = table.rows + segment[i] * 2 * channels;
            const int m = 8 * (eight + j) + 2 * t + i % 2;
            for (int c = 0; c < channels; ++c) {
              const float slope = line[c];
              if (!live(i, slope, line[channels + c])) continue;
              const float x = load<float>(
                  p.grad_phi.data,
                  up + i / 2 * 8 * p.grad_phi.row + m * channels + c,
                  p.grad_phi.type);
              total[i] = fmaf(x, slope, total[i]);
              if (c < first_channel || c >= last_channel) continue;
              const int at =
                  (segment[i] * sum_row + c - first_channel) * tiles.copies +
                  copy;
              add_wide(low, high, at, x * units);
              add_wide(low, high, at + tiles.channels * tiles.copies,
                       x * units_u * u[j][i]);
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
  float* sums = p.partials + (head * parts + part) * p.size;
  const int own_channels = last_channel - first_channel;
  for (int i = threadIdx.x; i < segments * 2 * own_channels; i += kThreads) {
    const int segment = i / (2 * own_channels), column = i % (2 * own_channels);
    const bool with_u = column >= own_channels;
    const int c = with_u ? column - own_channels : column;
    const int at =
        (segment * sum_row + (with_u ? tiles.channels : 0) + c) * tiles.copies;
    int64_t total = 0;
    for (int k = 0; k < tiles.copies; ++k) {
      total += static_cast<int64_t>(static_cast<uint64_t>(high[at + k]) << 32 |
                                    low[at + k]);
    }
    const int exponent = (with_u ? gu_exponent : g_exponent) - p.unit_bits;
    sums[segment * 2 * channels + (with_u ? channels : 0) + first_channel + c] =
        finite ? static_cast<float>(
                     ldexp(static_cast<double>(total), exponent) * map.factor)
               : NAN;
  }
  if (!leads) return;
  float* own = sums + segments * 2 * channels;
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
                            int* tops, cudaStream_t stream) {
  FeatureTiles tiles;
  cut_feature_tiles(map, true, tiles);
  const int64_t tokens = rows.batch * rows.length;
  const bool x_in_fours = in_fours(rows.x, map.width);
  const int64_t gradients = tokens * rows.heads * map.features();
  const Rows flat = {grad_phi.data, 0, 0, 0, grad_phi.type};
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
  const Channels kind = channels_of(map, grad_phi);
  const auto kernel = rows.x.type == Scalar::kFloat ? backward_for<true>(kind)
                                                    : backward_for<false>(kind);
  const auto bytes = static_cast<int>(tiles.floats * sizeof(float));
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       bytes);
  const dim3 grid(
      static_cast<unsigned>(parts), static_cast<unsigned>(rows.heads),
      static_cast<unsigned>(blocks_for(map.shape.channels, tiles.channels)));
  if (grid.y == 0 || grid.z == 0) return;
  const int64_t count = rows.batch * blocks_for(rows.length, tiles.tokens());
  const auto added = static_cast<uint64_t>(blocks_for(count, parts) *
                                           tiles.tokens() * map.projections);
  const int unit_bits =
      std::min(40, 61 - static_cast<int>(std::bit_width(added)));
  kernel<<<grid, kThreads, bytes, stream>>>(
      map, tiles,
      BackwardArguments{rows, grad_phi, grad_x, partials,
                        feature_sums_size(map), tops, unit_bits, x_in_fours});
  check_launch("feature_map_backward");
}

}  // namespace luna::cuda
