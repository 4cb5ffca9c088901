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
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int warp = threadIdx.x % kGroup / 32, g = lane / 4, t = lane % 4;
  const int worker = group * gridDim.x + blockIdx.x;
  unsigned char* own = memory + group * KeyStages::kBytes;
  KeyStages stages(own,
                   reinterpret_cast<KeyStages::Control*>(
                       memory + KeyLayout::kControl)[group],
                   p.tiles, &p.key, &p.value, p.weight);
  if (threadIdx.x % kGroup == 0) stages.init();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  const ProjectionRows projection_rows(p.map, 0);
  Table table(p.map, memory + KeyLayout::kTable);
  table.build<kKeyGroups * kGroup>(p.map);
  unsigned char* projection = memory + KeyLayout::kProjection + group * 2048;
  projection_rows.write(true, projection);
  if (threadIdx.x < kTokens) {  // a column of ones
    reinterpret_cast<uint4*>(memory + KeyLayout::kOnes)[threadIdx.x] =
        make_uint4(pack(1.f, 0.f), 0, 0, 0);
  }
  fence_async();
  __syncthreads();
  const DeepOperand w(shared_address(projection));
  const NarrowOperand ones(shared_address(memory + KeyLayout::kOnes));
  float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  Sums sums;
  const int count = uniform(stages.control.count);
  for (int i = 0; i < count; ++i) {
    const Tile tile = stages.arrived();
    if (tile.first && p.map.per_head) {
      group_barrier(group);
      ProjectionRows(p.map, tile.head).write(true, projection);
      bias[0] = p.map.bias[tile.head * kProjections + 2 * t];
      bias[1] = p.map.bias[tile.head * kProjections + 2 * t + 1];
      fence_async();
      group_barrier(group);
    }
    unsigned char* rows = own + stages.slot * 2 * kTileBytes;
    if (tile.count < kTokens && p.tiles.tiles.begin != nullptr) {
      clear_rows(rows, tile.count);
      clear_rows(rows + kTileBytes, tile.count);
      fence_async();
      group_barrier(group);
    }
    float projected[8], u[4];
    products_begin();
    project(DeepOperand(stages.x_rows()), w, projected);
    const int row = 16 * warp + g;
    float weight[2] = {row < tile.count ? 1.f : 0.f,
                       row + 8 < tile.count ? 1.f : 0.f};
    if (p.weight.data != nullptr) {
      const float* from = p.weight.data + tile.batch * p.weight.batch +
                          tile.head * p.weight.head + tile.row + row;
      if (row < tile.count) weight[0] = from[0];
      if (row + 8 < tile.count) weight[1] = from[8];
    }
    products_wait<0>();
    finish_projection(projected, bias, u);
    int segment[4];
    uint32_t phi[4][4];
    uint4 slope[4];
    float unit[4];
    table.look_up(u, weight, segment, phi, slope, unit);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      *reinterpret_cast<uint4*>(rows + (row + n / 2 * 8) * kRowBytes +
                                ((2 * t + n % 2) ^ g) * 16) =
          make_uint4(phi[n][0], phi[n][1], phi[n][2], phi[n][3]);
    }
    fence_async();
    group_barrier(group);
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t a = WideOperand(stages.x_rows()).step(k);
      multiply<true, true>(sums.s, a, WideOperand(stages.y_rows()).step(k), 1);
      multiply<true, true>(sums.z, a, ones.step(k), 1);
    }
    products_commit();
    products_wait<0>();
    stages.release();
    stages.advance();
    if (tile.last) sums.write(tile, p.states, p.parts, worker);
  }
}

// --- The sums of parts -------------------------------------------------

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
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int t = lane % 4;
  const int worker = group * gridDim.x + blockIdx.x;
  const Factor<float> no_factor;
  QueryStages stages(memory + group * QueryStages::kBytes,
                     reinterpret_cast<QueryStages::Control*>(
                         memory + QueryLayout::kControl)[group],
                     p.tiles, &p.query, nullptr, no_factor);
  if (threadIdx.x % kGroup == 0) stages.init();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  const ProjectionRows projection_rows(p.map, 0);
  Table table(p.map, memory + QueryLayout::kTable);
  table.build<kQueryGroups * kGroup>(p.map);
  unsigned char* state = memory + QueryLayout::kState + group * kTileBytes;
  unsigned char* normalizer = memory + QueryLayout::kNormalizer + group * 1024;
  unsigned char* projection = memory + QueryLayout::kProjection + group * 2048;
  projection_rows.write(true, projection);
  // Rows 0 and 1: the normaliser's high and low parts.
  if (threadIdx.x % kGroup < 64) {
    reinterpret_cast<uint4*>(normalizer)[threadIdx.x % kGroup] =
        make_uint4(0, 0, 0, 0);
  }
  fence_async();
  __syncthreads();
  const DeepOperand w(shared_address(projection)),
      z(shared_address(normalizer));
  const WideOperand s(shared_address(state));
  float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  const int count = uniform(stages.control.count);
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
        ProjectionRows(p.map, tile.head).write(true, projection);
        bias[0] = p.map.bias[tile.head * kProjections + 2 * t];
        bias[1] = p.map.bias[tile.head * kProjections + 2 * t + 1];
      }
      fence_async();
      group_barrier(group);
    }
    float projected[8], u[4];
    products_begin();
    project(DeepOperand(stages.x_rows()), w, projected);
    products_wait<0>();
    stages.release();
    stages.advance();
    finish_projection(projected, bias, u);
    int segment[4];
    uint32_t phi[4][4];
    uint4 slope[4];
    float unit[4];
    table.look_up(u, {1.f, 1.f}, segment, phi, slope, unit);
    float c[32], d[4];
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int m = k / 2, j = 2 * (k % 2);
      multiply<false>(d, phi[m][j], phi[2 + m][j], phi[m][j + 1],
                      phi[2 + m][j + 1], z.step(k), k > 0);
      multiply<true>(c, phi[m][j], phi[2 + m][j], phi[m][j + 1],
                     phi[2 + m][j + 1], s.step(k), k > 0);
    }
    products_commit();
    const TileRows out(p.out, tile);
    products_wait<0>();
    // Thread 0 of the quad has the denominator's two parts.
    const float den[2] = {__shfl_sync(0xffffffffu, d[0] + d[1], lane & ~3),
                          __shfl_sync(0xffffffffu, d[2] + d[3], lane & ~3)};
    out.store(c, 1.f / guarded(den[0], p.eps), 1.f / guarded(den[1], p.eps));
    if (p.denominator != nullptr && t == 0) {
      float* to = p.denominator + tile.batch * p.denominator_batch +
                  tile.head * p.denominator_head + tile.row + out.row;
      if (out.row < tile.count) to[0] = den[0];
      if (out.row + 8 < tile.count) to[8] = den[1];
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
  launch_after(fused::keys_kernel, fused::blocks_of(p.tiles),
               fused::kKeyGroups * fused::kGroup,
               fused::key_memory(p.map.shape), stream, "fused_keys", p);
}

void fused_add(const FusedAdd& p, cudaStream_t stream) {
  const auto states =
      static_cast<unsigned>(p.tiles.tiles.sequences * p.tiles.heads);
  launch_after(fused::add_kernel,
               dim3(states, blocks_for(kFusedPart / 4, fused::kGroup)),
               fused::kAddGroups * fused::kGroup, 0, stream, "fused_add", p);
}

void fused_queries(const FusedQueries& p, cudaStream_t stream) {
  launch_after(fused::queries_kernel, fused::blocks_of(p.tiles),
               fused::kQueryGroups * fused::kGroup,
               fused::query_memory(p.map.shape), stream, "fused_queries", p);
}

}  // namespace luna::cuda
