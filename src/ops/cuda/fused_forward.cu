// The two passes of the fused forward, and the sum of the first one's parts.

#include <algorithm>

#include "ops/cuda/fused.cuh"

namespace luna::cuda {
namespace fused {
namespace {

// --- Keys -------------------------------------------------------------------

// Features take the place of the keys they came from, where they find room
// there: a warp's products read the rows that it alone writes. Then
// S += phi^T V, both from shared memory.

template <int kNumbers>
struct Keys {
  static constexpr int kGroups = kNumbers <= 64 ? 4 : 2;
  /// Where in a stage the features are.
  static constexpr int kFeaturesAt =
      kNumbers < kFeatures ? 2 * Block<kNumbers>::kBytes : 0;
  using KeyStages = Stages < 2, 2, kNumbers,
        kNumbers<kFeatures ? Block<kFeatures>::kBytes : 0>;
  using ProjectionRows = ProjectionRowsOf<kNumbers>;
  static constexpr int kProjectionBytes = ProjectionRows::Rows::kBytes;

  static constexpr int kProjection = kGroups * KeyStages::kBytes;
  static constexpr int kOnes = kProjection + kGroups * kProjectionBytes;
  static constexpr int kControl = kOnes + kNarrowBytes;
  static constexpr int kTable =
      kControl +
      (kGroups * static_cast<int>(sizeof(typename KeyStages::Control)) + 15) /
          16 * 16;
  static size_t memory(const TableShape& shape) {
    return kTable + Table::bytes(shape);
  }
};

template <int kNumbers>
__global__ void __launch_bounds__(Keys<kNumbers>::kGroups* kGroup, 1)
    keys_kernel(const __grid_constant__ FusedKeys p) {
  using Form = Keys<kNumbers>;
  using KeyStages = typename Form::KeyStages;
  using ProjectionRows = typename Form::ProjectionRows;
  using Rows = Block<kNumbers>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int warp = threadIdx.x % kGroup / 32, g = lane / 4, t = lane % 4;
  const int worker = group * gridDim.x + blockIdx.x;
  unsigned char* own = memory + group * KeyStages::kBytes;
  KeyStages stages(own,
                   reinterpret_cast<typename KeyStages::Control*>(
                       memory + Form::kControl)[group],
                   p.tiles, &p.key, &p.value, p.weight);
  if (threadIdx.x % kGroup == 0) stages.init();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  const ProjectionRows projection_rows(p.map, 0);
  Table table(p.map, memory + Form::kTable);
  table.build<Form::kGroups * kGroup>(p.map);
  unsigned char* projection =
      memory + Form::kProjection + group * Form::kProjectionBytes;
  projection_rows.write(true, projection);
  if (threadIdx.x < kTokens) {  // a column of ones
    reinterpret_cast<uint4*>(memory + Form::kOnes)[threadIdx.x] =
        make_uint4(pack(1.f, 0.f), 0, 0, 0);
  }
  fence_async();
  __syncthreads();
  const typename ProjectionRows::Rows::Deep w(shared_address(projection));
  const NarrowOperand ones(shared_address(memory + Form::kOnes));
  float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  SumsOf<kNumbers> sums;
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
    unsigned char* rows = own + stages.slot * KeyStages::kStageBytes;
    if (tile.count < kTokens && p.tiles.tiles.begin != nullptr) {
      clear_rows<kNumbers>(rows, tile.count);
      clear_rows<kNumbers>(rows + Rows::kBytes, tile.count);
      fence_async();
      group_barrier(group);
    }
    float projected[8], u[4];
    products_begin();
    project_rows<kNumbers>(typename Rows::Deep(stages.x_rows()), w, projected);
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
      *reinterpret_cast<uint4*>(
          rows + Form::kFeaturesAt +
          Block<kFeatures>::chunk_at(row + n / 2 * 8, 2 * t + n % 2)) =
          make_uint4(phi[n][0], phi[n][1], phi[n][2], phi[n][3]);
    }
    fence_async();
    group_barrier(group);
    products_begin();
    const WideOperand features(stages.x_rows() + Form::kFeaturesAt);
    const typename Rows::Wide values(stages.y_rows());
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int j = 0; j < Rows::kPieces; ++j) {
        multiply<true, true>(sums.piece(j), features.step(k), values.step(k, j),
                             1);
      }
      multiply<true, true>(sums.z, features.step(k), ones.step(k), 1);
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
  const int64_t part_words = fused_part(p.width) / 4;
  const bool live = i < part_words;
  float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
  if (live && !whole) {
    const float4* at = reinterpret_cast<const float4*>(p.parts) + i;
#pragma unroll 4
    for (int part = from + group; part <= to; part += kAddGroups) {
      const float4 x =
          at[(2 * static_cast<int64_t>(part) + (part == from ? 1 : 0)) *
             part_words];
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
  const int row_numbers = p.width + 1;
  const int64_t state =
      static_cast<int64_t>(blockIdx.x) * kFeatures * row_numbers;
#pragma unroll
  for (int e = 0; e < 4; ++e) {  // as Sums has them
    const int n = (4 * i + e) / kGroup, owner = (4 * i + e) % kGroup;
    const int t = owner % 4;
    int row = owner / 32 * 16 + owner % 32 / 4, column = p.width;
    if (n < p.width / 2) {
      row += n / 2 % 2 * 8;
      column = n / 4 * 8 + 2 * t + n % 2;
    } else {
      if (t != 0) continue;
      row += (n - p.width / 2) * 8;
    }
    const int64_t at = state + row * row_numbers + column;
    float x = whole ? p.states[at] : sums[e];
    if (p.start != nullptr) x += p.start[at];
    p.states[at] = x;
  }
}

// --- Queries ----------------------------------------------------------------

template <int kNumbers>
struct Queries {
  static constexpr int kGroups = kNumbers <= 64 ? 4 : 3;
  using QueryStages = Stages<1, kNumbers <= 64 ? 3 : 2, kNumbers>;
  using ProjectionRows = ProjectionRowsOf<kNumbers>;
  static constexpr int kProjectionBytes = ProjectionRows::Rows::kBytes;

  static constexpr int kState = kGroups * QueryStages::kBytes;
  static constexpr int kNormalizer = kState + kGroups * Block<kNumbers>::kBytes;
  static constexpr int kProjection = kNormalizer + kGroups * 1024;
  static constexpr int kControl = kProjection + kGroups * kProjectionBytes;
  static constexpr int kTable =
      kControl +
      (kGroups * static_cast<int>(sizeof(typename QueryStages::Control)) + 15) /
          16 * 16;
  static size_t memory(const TableShape& shape) {
    return kTable + Table::bytes(shape);
  }
};

template <int kNumbers>
__global__ void __launch_bounds__(Queries<kNumbers>::kGroups* kGroup, 1)
    queries_kernel(const __grid_constant__ FusedQueries p) {
  using Form = Queries<kNumbers>;
  using QueryStages = typename Form::QueryStages;
  using ProjectionRows = typename Form::ProjectionRows;
  using Rows = Block<kNumbers>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int t = lane % 4;
  const int worker = group * gridDim.x + blockIdx.x;
  const Factor<float> no_factor;
  QueryStages stages(memory + group * QueryStages::kBytes,
                     reinterpret_cast<typename QueryStages::Control*>(
                         memory + Form::kControl)[group],
                     p.tiles, &p.query, nullptr, no_factor);
  if (threadIdx.x % kGroup == 0) stages.init();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  const ProjectionRows projection_rows(p.map, 0);
  Table table(p.map, memory + Form::kTable);
  table.build<Form::kGroups * kGroup>(p.map);
  unsigned char* state = memory + Form::kState + group * Rows::kBytes;
  unsigned char* normalizer = memory + Form::kNormalizer + group * 1024;
  unsigned char* projection =
      memory + Form::kProjection + group * Form::kProjectionBytes;
  projection_rows.write(true, projection);
  // Rows 0 and 1: the normaliser's high and low parts.
  if (threadIdx.x % kGroup < 64) {
    reinterpret_cast<uint4*>(normalizer)[threadIdx.x % kGroup] =
        make_uint4(0, 0, 0, 0);
  }
  fence_async();
  __syncthreads();
  const typename ProjectionRows::Rows::Deep w(shared_address(projection));
  const DeepOperand z(shared_address(normalizer));
  const typename Rows::Wide s(shared_address(state));
  float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  const int count = uniform(stages.control.count);
  for (int i = 0; i < count; ++i) {
    const Tile tile = stages.arrived();
    if (tile.first) {
      const float* from = p.states + static_cast<int64_t>(tile.state) *
                                         kFeatures * (kNumbers + 1);
      group_barrier(group);
      write_state<kNumbers>(from, nullptr, state);
      if (threadIdx.x % kGroup < kFeatures) {
        const int feature = threadIdx.x % kGroup;
        const int place = place_of_feature(feature);
        const float x = from[feature * (kNumbers + 1) + kNumbers];
        const float high = high_part(x);
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
    project_rows<kNumbers>(typename Rows::Deep(stages.x_rows()), w, projected);
    products_wait<0>();
    stages.release();
    stages.advance();
    finish_projection(projected, bias, u);
    int segment[4];
    uint32_t phi[4][4];
    uint4 slope[4];
    float unit[4];
    table.look_up(u, {1.f, 1.f}, segment, phi, slope, unit);
    const TileRows out(p.out, tile);
    float d[4], inverse[2];
#pragma unroll
    for (int j = 0; j < Rows::kPieces; ++j) {
      float c[Rows::kPieceNumbers / 2];
      products_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int m = k / 2, i = 2 * (k % 2);
        if (j == 0) {
          multiply<false>(d, phi[m][i], phi[2 + m][i], phi[m][i + 1],
                          phi[2 + m][i + 1], z.step(k), k > 0);
        }
        multiply<true>(c, phi[m][i], phi[2 + m][i], phi[m][i + 1],
                       phi[2 + m][i + 1], s.step(k, j), k > 0);
      }
      products_commit();
      products_wait<0>();
      if (j == 0) {  // thread 0 of the quad has the denominator's two parts
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          d[r] = __shfl_sync(0xffffffffu, d[2 * r] + d[2 * r + 1], lane & ~3);
          inverse[r] = 1.f / guarded(d[r], p.eps);
        }
      }
      out.store(c, inverse[0], inverse[1], j);
    }
    if (p.denominator != nullptr && t == 0) {
      float* to = p.denominator + tile.batch * p.denominator_batch +
                  tile.head * p.denominator_head + tile.row + out.row;
      if (out.row < tile.count) to[0] = d[0];
      if (out.row + 8 < tile.count) to[8] = d[1];
    }
  }
}

template <int kNumbers>
size_t memory_of(const TableShape& shape) {
  return std::max(Keys<kNumbers>::memory(shape),
                  Queries<kNumbers>::memory(shape));
}

}  // namespace

size_t forward_memory(const TableShape& shape, int64_t width) {
  return for_width(width,
                   [&]<int kNumbers>() { return memory_of<kNumbers>(shape); });
}

}  // namespace fused

int64_t fused_keys_workers(int64_t width) {
  return fused::multiprocessors() *
         fused::for_width(width, [&]<int kNumbers>() {
           return fused::Keys<kNumbers>::kGroups;
         });
}
int64_t fused_queries_workers(int64_t width) {
  return fused::multiprocessors() *
         fused::for_width(width, [&]<int kNumbers>() {
           return fused::Queries<kNumbers>::kGroups;
         });
}

void fused_keys(const FusedKeys& p, cudaStream_t stream) {
  fused::for_width(p.map.width, [&]<int kNumbers>() {
    using Form = fused::Keys<kNumbers>;
    launch_after(fused::keys_kernel<kNumbers>, fused::blocks_of(p.tiles),
                 Form::kGroups * fused::kGroup, Form::memory(p.map.shape),
                 stream, "fused_keys", p);
  });
}

void fused_add(const FusedAdd& p, cudaStream_t stream) {
  const auto states =
      static_cast<unsigned>(p.tiles.tiles.sequences * p.tiles.heads);
  launch_after(fused::add_kernel,
               dim3(states, blocks_for(fused_part(p.width) / 4, fused::kGroup)),
               fused::kAddGroups * fused::kGroup, 0, stream, "fused_add", p);
}

void fused_queries(const FusedQueries& p, cudaStream_t stream) {
  fused::for_width(p.map.width, [&]<int kNumbers>() {
    using Form = fused::Queries<kNumbers>;
    launch_after(fused::queries_kernel<kNumbers>, fused::blocks_of(p.tiles),
                 Form::kGroups * fused::kGroup, Form::memory(p.map.shape),
                 stream, "fused_queries", p);
  });
}

}  // namespace luna::cuda
