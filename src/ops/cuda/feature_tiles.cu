// phi(x) by tiles: u as a product, then psi by its table.

#include <algorithm>

#include "ops/cuda/feature_tiles.cuh"
#include "ops/cuda/launch.h"

namespace luna::cuda {
namespace {

using namespace features;

constexpr int kMostCopies = 8;  // of a power of two: lanes share them evenly

/// Of a block's shared memory on this device.
int most_floats() {
  return (block_memory() - 1024) / static_cast<int>(sizeof(float));
}

/// Eight neighbours, 16-byte aligned.
__device__ __forceinline__ void store_eight(void* data, int64_t at, Scalar type,
                                            const float (&x)[8]) {
  if (type == Scalar::kFloat) {
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(data) + at);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
    return;
  }
  uint32_t y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    y[i] = type == Scalar::kHalf
               ? mma::pack<__half>(x[2 * i], x[2 * i + 1])
               : mma::pack<__nv_bfloat16>(x[2 * i], x[2 * i + 1]);
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(data) + at) =
      make_uint4(y[0], y[1], y[2], y[3]);
}

__device__ __forceinline__ void store_two(void* data, int64_t at, Scalar type,
                                          float x, float y) {
  if (type == Scalar::kFloat) {
    *reinterpret_cast<float2*>(static_cast<float*>(data) + at) =
        make_float2(x, y);
    return;
  }
  *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(data) + at) =
      type == Scalar::kHalf ? mma::pack<__half>(x, y)
                            : mma::pack<__nv_bfloat16>(x, y);
}

template <bool kExact, Channels kKind>
__global__ void __launch_bounds__(kThreads, kKind == Channels::kOne ? 3 : 2)
    forward_kernel(const __grid_constant__ FeatureMap<float> map,
                   const __grid_constant__ FeatureTiles tiles,
                   const __grid_constant__ FeatureRows r,
                   const __grid_constant__ Rows phi, bool x_in_fours) {
  constexpr int kAtOnce = at_once(kKind);
  extern __shared__ __align__(16) float memory[];
  const int64_t head = blockIdx.y, parts = gridDim.x;
  copy_weights(map, tiles, head, memory);
  Table::copy(map, tiles, memory);
  const Table table(map, tiles, memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int token = warp % tiles.token_warps * 16;
  const int m_count = static_cast<int>(map.projections);
  const int channels = static_cast<int>(map.shape.channels);
  const int stride = tiles.columns + 8, tokens = tiles.token_warps * 16;
  const int per_warp =
      (m_count + 8 * tiles.projection_warps - 1) / (8 * tiles.projection_warps);
  const int from = warp / tiles.token_warps * per_warp;
  const int to = min(from + per_warp, (m_count + 7) / 8);
  const int64_t per_batch = (r.length + tokens - 1) / tokens;
  for (int64_t tile = blockIdx.x; tile < r.batch * per_batch; tile += parts) {
    const int64_t batch = tile / per_batch, first = tile % per_batch * tokens;
    const int64_t left = r.length - first;
    const int count = left < tokens ? static_cast<int>(left) : tokens;
    __syncthreads();
    copy_rows(r, batch, head, first, count, static_cast<int>(map.width),
              x_in_fours, tiles, memory + tiles.x);
    __syncthreads();
    if (token >= count) continue;
    const int64_t rows = row_at(phi, batch, head, first + token + g);
    for (int eight = from; eight < to; eight += kAtOnce) {
      float u[kAtOnce][4];
      project<kExact, kAtOnce>(memory + tiles.x + token * stride,
                               memory + tiles.weights + 8 * eight * stride,
                               memory + tiles.biases + 8 * eight, tiles,
                               to - eight, u);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (eight + j >= to) break;
        int segment[4];
        table.find(u[j], segment);
        const auto feature = [&](int i, float slope, float intercept) {
          const float value = slope * u[j][i] + intercept;
          return (map.nonneg && value < 0.f ? 0.f : value) * map.factor;
        };
        const int m = 8 * (eight + j) + 2 * t;
        if constexpr (kKind == Channels::kOne) {
          float y[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 line =
                reinterpret_cast<const float2*>(table.rows)[segment[i]];
            y[i] = feature(i, line.x, line.y);
          }
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            if (token + g + 8 * k >= count || m >= m_count) continue;
            store_two(phi.data, rows + 8 * k * phi.row + m, phi.type, y[2 * k],
                      y[2 * k + 1]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (token + g + i / 2 * 8 >= count || m + i % 2 >= m_count) {
              continue;
            }
            const float* line = table.rows + segment[i] * 2 * channels;
            const int64_t at =
                rows + i / 2 * 8 * phi.row + (m + i % 2) * channels;
            if constexpr (kKind == Channels::kEights) {
              for (int c = 0; c < channels; c += 8) {
                float y[8];
#pragma unroll
                for (int k = 0; k < 8; k += 4) {
                  const auto s = *reinterpret_cast<const float4*>(line + c + k);
                  const auto b =
                      *reinterpret_cast<const float4*>(line + channels + c + k);
                  y[k] = feature(i, s.x, b.x);
                  y[k + 1] = feature(i, s.y, b.y);
                  y[k + 2] = feature(i, s.z, b.z);
                  y[k + 3] = feature(i, s.w, b.w);
                }
                store_eight(phi.data, at + c, phi.type, y);
              }
            } else {
              for (int c = 0; c < channels; ++c) {
                store<float>(phi.data, at + c, phi.type,
                             feature(i, line[c], line[channels + c]));
              }
            }
          }
        }
      }
    }
  }
}

template <bool kExact>
auto forward_for(Channels kind) {
  return kind == Channels::kOne      ? forward_kernel<kExact, Channels::kOne>
         : kind == Channels::kEights ? forward_kernel<kExact, Channels::kEights>
                                     : forward_kernel<kExact, Channels::kAny>;
}

}  // namespace

bool cut_feature_tiles(const FeatureMap<float>& map, bool backward,
                       FeatureTiles& tiles) {
  const TableShape& s = map.shape;
  const int most = most_floats();
  if (s.knots > 65535 || map.width > 1024 || map.projections > 4096 ||
      (s.knots + 1) * s.channels > int64_t{1} << 28) {
    return false;
  }
  tiles = {};
  const auto up = [](int64_t x, int64_t to) { return (x + to - 1) / to * to; };
  tiles.columns = static_cast<int>(up(std::max<int64_t>(map.width, 1), 16));
  tiles.rows = static_cast<int>(up(std::max<int64_t>(map.projections, 1), 16));
  const int64_t all_channels = std::max<int64_t>(s.channels, 1);
  const auto words = [&](int64_t channels) {
    return channels * sum_segments(s, Knots::kOwn) * 2;
  };
  // Fewer tokens where memory is short, or projections many.
  int warps = map.projections > 32 ? 2 : (map.projections > 16 ? 4 : kWarps);
  for (; warps > 0; warps /= 2) {
    for (int afar = 0; afar < 3; ++afar) {
      tiles.token_warps = warps;
      tiles.projection_warps = kWarps / warps;
      int64_t at = 0;
      const auto place = [&](int64_t floats) {
        const auto here = static_cast<int>(at);
        at += up_to_four(floats);
        return here;
      };
      tiles.weights = place(int64_t{1} * tiles.rows * tiles.stride());
      tiles.biases = place(tiles.rows);
      tiles.x = place(int64_t{1} * tiles.tokens() * tiles.stride());
      tiles.boundary = place(s.knots);
      tiles.cells = place((s.cells + 2) / 2);
      bool one_pass = true;
      if (!backward) {
        tiles.table_near = afar == 0;
        if (tiles.table_near) {
          tiles.table = place((s.knots + 1) * 2 * s.channels);
        }
      } else {
        tiles.lines_near = afar < 2;
        tiles.index_near = afar == 0;
        if (tiles.lines_near) tiles.lines = place(own_lines(s));
        if (tiles.index_near) tiles.index = place(own_index(s));
        tiles.du = place(int64_t{1} * tiles.tokens() * (tiles.rows + 8));
        tiles.grad_weights = place(int64_t{1} * tiles.rows * tiles.stride());
        // Whole eights as long as one fits, which are the fastest.
        int64_t channels = all_channels;
        while (channels > 1 && at + 2 * words(channels) > most) {
          channels = (channels + 1) / 2;
          if (channels > 8) channels = up(channels, 8);
        }
        one_pass = channels == all_channels;
        // Two blocks on each multiprocessor where they fit; the rest is what
        // the kernel has of its own.
        const int64_t half = most / 2 - 64;
        const int64_t room = at + 2 * words(channels) <= half ? half : most;
        int copies = 1;
        while (copies < kMostCopies &&
               at + 2 * words(channels) * 2 * copies <= room) {
          copies *= 2;
        }
        tiles.channels = static_cast<int>(channels);
        tiles.copies = copies;
        tiles.low = place(words(channels) * copies);
        tiles.high = place(words(channels) * copies);
      }
      tiles.floats = static_cast<int>(std::min<int64_t>(at, int64_t{1} << 30));
      // Many passes over the same rows are no better than a table afar.
      if (at <= most && (one_pass || afar == 2)) return true;
    }
  }
  return false;
}

int64_t feature_tiles_scratch(const TableShape& shape) {
  return kScratchTops + up_to_four(own_lines(shape)) + own_index(shape);
}

int64_t feature_tile_parts(const FeatureRows& rows, const FeatureTiles& tiles) {
  const int64_t count = rows.batch * blocks_for(rows.length, tiles.tokens());
  // Enough for two or three blocks on each multiprocessor.
  const int64_t blocks = tiles.floats > 12 * 1024 ? 264 : 396;
  const int64_t wanted = blocks_for(blocks, std::max<int64_t>(rows.heads, 1));
  return std::clamp<int64_t>(count, 1, wanted);
}

void feature_tiles_forward(const FeatureMap<float>& map,
                           const FeatureRows& rows, const Rows& phi,
                           cudaStream_t stream) {
  if (rows.batch * rows.heads * rows.length * map.features() == 0) return;
  FeatureTiles tiles;
  cut_feature_tiles(map, false, tiles);
  const Channels kind = channels_of(map, phi);
  const auto kernel = rows.x.type == Scalar::kFloat ? forward_for<true>(kind)
                                                    : forward_for<false>(kind);
  const auto bytes = static_cast<int>(tiles.floats * sizeof(float));
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       bytes);
  const dim3 grid(static_cast<unsigned>(feature_tile_parts(rows, tiles)),
                  static_cast<unsigned>(rows.heads));
  kernel<<<grid, kThreads, bytes, stream>>>(map, tiles, rows, phi,
                                            in_fours(rows.x, map.width));
  check_launch("feature_map");
}

}  // namespace luna::cuda
