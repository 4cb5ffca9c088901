// The two passes of the fused forward, and the sum of the first one's parts.

#include <algorithm>

#include "ops/cuda/fused.cuh"

namespace luna::cuda {
namespace fused {
namespace {

// --- Keys -------------------------------------------------------------------

// Features take the place of the keys they came from: a warp's products read
// the rows that it alone writes. Then S += phi^T V, both from shared memory.

constexpr int kKeyGroups = 4;
using KeyStages = Stages<2, 2>;

struct KeyLayout {
  static constexpr int kProjection = kKeyGroups * KeyStages::kBytes;
  static constexpr int kOnes = kProjection + kKeyGroups * 2048;
  static constexpr int kControl = kOnes + kNarrowBytes;
  static constexpr int kTable =
      kControl +
      (kKeyGroups * static_cast<int>(sizeof(KeyStages::Control)) + 15) / 16 *
          16;
};

__global__ void __launch_bounds__(kKeyGroups* kGroup, 1)
    keys_kernel(const __grid_constant__ FusedKeys p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = threadIdx.x / kGroup, lane = threadIdx.x % 32;
  const int warp = threadIdx.x % kGroup / 32, g = lane / 4, t = lane % 4;
  const int worker = group * gridDim.x + blockIdx.x;
  unsigned char* own = memory + group * KeyStages::kBytes;
  KeyStages stages(own,
                   reinterpret_cast<KeyStages::Control*>(
                       memory + KeyLayout::kControl)[group],
                   p.tiles, &p.key, &p.value);
  if (threadIdx.x % kGroup == 0) stages.init();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  Table table(p.map, memory + KeyLayout::kTable);
  table.build(p.map);
  unsigned char* projection = memory + KeyLayout::kProjection + group * 2048;
  write_projection(p.map, 0, true, projection);
  if (threadIdx.x < kTokens) {  // a column of ones
    reinterpret_cast<uint4*>(memory + KeyLayout::kOnes)[threadIdx.x] =
        make_uint4(pack(1.f, 0.f), 0, 0, 0);
  }
  fence_async();
  __syncthreads();
  const uint32_t w = shared_address(projection);
  const uint32_t ones = shared_address(memory + KeyLayout::kOnes);
  float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  Sums sums;
  const int count = stages.control.count;
  for (int i = 0; i < count; ++i) {
    const Tile tile = stages.arrived();
    if (tile.first && p.map.per_head) {
      group_barrier(group);
      write_projection(p.map, tile.head, true, projection);
      bias[0] = p.map.bias[tile.head * kProjections + 2 * t];
      bias[1] = p.map.bias[tile.head * kProjections + 2 * t + 1];
      fence_async();
      group_barrier(group);
    }
    unsigned char* rows = own + stages.slot * 2 * kTileBytes;
    if (tile.count < kTokens && p.tiles.tiles.begin != nullptr) {
      clear_rows(rows + kTileBytes, tile.count);
      fence_async();  // the barrier comes before the product
    }
    float projected[8], u[4];
    products_begin();
    project(stages.x_rows(), w, projected);
    const int row = 16 * warp + g;
    float weight[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool valid = row + 8 * r < tile.count;
      weight[r] = valid ? 1.f : 0.f;
      if (p.weight.data != nullptr && valid) {
        weight[r] =
            factor_of(p.weight, tile.batch, tile.head, tile.row + row + 8 * r);
      }
    }
    products_wait<0>();
    finish_projection(projected, bias, u);
    int segment[4];
    float point[4];
    table.find(u, segment, point);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool valid = row + 8 * r < tile.count;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t phi[4];
        uint4 slope;
        float unit;
        table.look_up(segment[2 * r + m], u[2 * r + m], point[2 * r + m],
                      weight[r], phi, slope, unit);
        *reinterpret_cast<uint4*>(rows + (row + 8 * r) * kRowBytes +
                                  ((2 * t + m) ^ g) * 16) =
            valid ? make_uint4(phi[0], phi[1], phi[2], phi[3])
                  : make_uint4(0, 0, 0, 0);
      }
    }
    fence_async();
    group_barrier(group);
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t phi = wide_operand(stages.x_rows(), k);
      multiply<true, true>(sums.s, phi, wide_operand(stages.y_rows(), k), 1);
      multiply<true, true>(sums.z, phi, narrow_operand(ones, k), 1);
    }
    products_commit();
    products_wait<0>();
    stages.release();
    stages.advance();
    if (tile.last) sums.write(tile, p.states, p.parts, worker);
  }
}

// --- The sums of parts
// ---------------------------------------------------------

constexpr int kAddGroups = 4;  // each every fourth part

__global__ void __launch_bounds__(kAddGroups* kGroup)
    add_kernel(const __grid_constant__ FusedAdd p) {
  __shared__ float4 shared[kAddGroups][kGroup];
  wait_for_previous_launch();
  allow_next_launch();
  const int head = static_cast<int>(blockIdx.x) % p.tiles.heads;
  const int sequence = static_cast<int>(blockIdx.x) / p.tiles.heads;
  const int run = run_length(p.tiles, all_tiles(p.tiles));
  Piece piece;
  sequence_of(p.tiles.tiles, sequence, piece);
  const int tiles = static_cast<int>((piece.length + kTokens - 1) / kTokens);
  const int begin =
      static_cast<int>(first_piece(p.tiles.tiles, sequence)) * p.tiles.heads +
      head * tiles;
  const int from = tiles == 0 ? 0 : begin / run;
  const int to = tiles == 0 ? -1 : (begin + tiles - 1) / run;
  const bool whole = from == to;
  if (whole && p.start == nullptr) return;
  const int group = threadIdx.x / kGroup, thread = threadIdx.x % kGroup;
  const int i = blockIdx.y * kGroup + thread;  // of float4s
  const bool live = i < kFusedPart / 4;
  float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
  if (live && !whole) {
    const float4* at = reinterpret_cast<const float4*>(p.parts) + i;
#pragma unroll 4
    for (int part = from + group; part <= to; part += kAddGroups) {
      const float4 x =
          at[(2 * static_cast<int64_t>(part) + (part == from ? 1 : 0)) *
             (kFusedPart / 4)];
      total.x += x.x;
      total.y += x.y;
      total.z += x.z;
      total.w += x.w;
    }
  }
  shared[group][thread] = total;
  __syncthreads();
  if (group > 0 || !live) return;
#pragma unroll
  for (int j = 1; j < kAddGroups; ++j) {
    const float4 x = shared[j][thread];
    total.x += x.x;
    total.y += x.y;
    total.z += x.z;
    total.w += x.w;
  }
  const float sums[4] = {total.x, total.y, total.z, total.w};
  const int64_t state = static_cast<int64_t>(blockIdx.x) * kFeatures * kLd;
#pragma unroll
  for (int e = 0; e < 4; ++e) {  // as Sums has them
    const int n = (4 * i + e) / kGroup, owner = (4 * i + e) % kGroup;
    const int t = owner % 4;
    int row = owner / 32 * 16 + owner % 32 / 4, column = kWidth;
    if (n < 32) {
      row += n / 2 % 2 * 8;
      column = n / 4 * 8 + 2 * t + n % 2;
    } else {
      if (t != 0) continue;
      row += (n - 32) * 8;
    }
    const int64_t at = state + row * kLd + column;
    float x = whole ? p.states[at] : sums[e];
    if (p.start != nullptr) x += p.start[at];
    p.states[at] = x;
  }
}

// --- Queries ----------------------------------------------------------------

constexpr int kQueryGroups = 4;
using QueryStages = Stages<1, 3>;

struct QueryLayout {
  static constexpr int kState = kQueryGroups * QueryStages::kBytes;
  static constexpr int kNormalizer = kState + kQueryGroups * kTileBytes;
  static constexpr int kProjection = kNormalizer + kQueryGroups * 1024;
  static constexpr int kControl = kProjection + kQueryGroups * 2048;
  static constexpr int kTable =
      kControl +
      (kQueryGroups * static_cast<int>(sizeof(QueryStages::Control)) + 15) /
          16 * 16;
};

__global__ void __launch_bounds__(kQueryGroups* kGroup, 1)
    queries_kernel(const __grid_constant__ FusedQueries p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = threadIdx.x / kGroup, lane = threadIdx.x % 32;
  const int warp = threadIdx.x % kGroup / 32, g = lane / 4, t = lane % 4;
  const int worker = group * gridDim.x + blockIdx.x;
  QueryStages stages(memory + group * QueryStages::kBytes,
                     reinterpret_cast<QueryStages::Control*>(
                         memory + QueryLayout::kControl)[group],
                     p.tiles, &p.query, nullptr);
  if (threadIdx.x % kGroup == 0) stages.init();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  Table table(p.map, memory + QueryLayout::kTable);
  table.build(p.map);
  unsigned char* state = memory + QueryLayout::kState + group * kTileBytes;
  unsigned char* normalizer = memory + QueryLayout::kNormalizer + group * 1024;
  unsigned char* projection = memory + QueryLayout::kProjection + group * 2048;
  write_projection(p.map, 0, true, projection);
  // Rows 0 and 1: the normaliser's high and low parts.
  if (threadIdx.x % kGroup < 64) {
    reinterpret_cast<uint4*>(normalizer)[threadIdx.x % kGroup] =
        make_uint4(0, 0, 0, 0);
  }
  fence_async();
  __syncthreads();
  const uint32_t w = shared_address(projection), s = shared_address(state);
  const uint32_t z = shared_address(normalizer);
  float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  const int count = stages.control.count;
  for (int i = 0; i < count; ++i) {
    const Tile tile = stages.arrived();
    if (tile.first) {
      const float* from =
          p.states + static_cast<int64_t>(tile.state) * kFeatures * kLd;
      group_barrier(group);
      write_state(from, nullptr, state);
      if (threadIdx.x % kGroup < kFeatures) {
        const int feature = threadIdx.x % kGroup;
        const int place = place_of_feature(feature);
        const float x = from[feature * kLd + kWidth], high = high_part(x);
        *reinterpret_cast<__nv_bfloat16*>(normalizer + operand_at(0, place)) =
            __float2bfloat16_rn(high);
        *reinterpret_cast<__nv_bfloat16*>(normalizer + operand_at(1, place)) =
            __float2bfloat16_rn(x - high);
      }
      if (p.map.per_head) {
        write_projection(p.map, tile.head, true, projection);
        bias[0] = p.map.bias[tile.head * kProjections + 2 * t];
        bias[1] = p.map.bias[tile.head * kProjections + 2 * t + 1];
      }
      fence_async();
      group_barrier(group);
    }
    float projected[8], u[4];
    products_begin();
    project(stages.x_rows(), w, projected);
    products_wait<0>();
    stages.release();
    stages.advance();
    finish_projection(projected, bias, u);
    int segment[4];
    float point[4];
    table.find(u, segment, point);
    uint32_t phi[2][2][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint4 slope;
      float unit;
      table.look_up(segment[n], u[n], point[n], 1.f, phi[n / 2][n % 2], slope,
                    unit);
    }
    float c[32], d[4];
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int m = k / 2, j = 2 * (k % 2);
      multiply<false>(d, phi[0][m][j], phi[1][m][j], phi[0][m][j + 1],
                      phi[1][m][j + 1], deep_operand(z, k), k > 0);
      multiply<true>(c, phi[0][m][j], phi[1][m][j], phi[0][m][j + 1],
                     phi[1][m][j + 1], wide_operand(s, k), k > 0);
    }
    products_commit();
    products_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Thread 0 of the quad has the denominator's two parts.
      const float den =
          __shfl_sync(0xffffffffu, d[2 * r] + d[2 * r + 1], lane & ~3);
      const int row = 16 * warp + g + 8 * r;
      if (row >= tile.count) continue;
      store_row(p.out, row_at(p.out, tile.batch, tile.head, tile.row + row), c,
                r, 1.f / guarded(den, p.eps));
      if (p.denominator != nullptr && t == 0) {
        p.denominator[tile.batch * p.denominator_batch +
                      tile.head * p.denominator_head + tile.row + row] = den;
      }
    }
  }
}

size_t key_memory(const TableShape& shape) {
  return KeyLayout::kTable + Table::bytes(shape);
}
size_t query_memory(const TableShape& shape) {
  return QueryLayout::kTable + Table::bytes(shape);
}

}  // namespace

size_t forward_memory(const TableShape& shape) {
  return std::max(key_memory(shape), query_memory(shape));
}

}  // namespace fused

int64_t fused_keys_workers() {
  return fused::multiprocessors() * fused::kKeyGroups;
}
int64_t fused_queries_workers() {
  return fused::multiprocessors() * fused::kQueryGroups;
}

void fused_keys(const FusedKeys& p, cudaStream_t stream) {
  fused::launch(fused::keys_kernel, fused::blocks_of(p.tiles),
                fused::kKeyGroups * fused::kGroup,
                fused::key_memory(p.map.shape), p, stream, "fused_keys");
}

void fused_add(const FusedAdd& p, cudaStream_t stream) {
  const auto states =
      static_cast<unsigned>(p.tiles.tiles.sequences * p.tiles.heads);
  fused::launch(fused::add_kernel,
                dim3(states, blocks_for(kFusedPart / 4, fused::kGroup)),
                fused::kAddGroups * fused::kGroup, 0, p, stream, "fused_add");
}

void fused_queries(const FusedQueries& p, cudaStream_t stream) {
  fused::launch(fused::queries_kernel, fused::blocks_of(p.tiles),
                fused::kQueryGroups * fused::kGroup,
                fused::query_memory(p.map.shape), p, stream, "fused_queries");
}

}  // namespace luna::cuda
