// The two passes of the fused forward, and the sum of the first one's parts.

#include <algorithm>

#include "ops/cuda/fused_forward.cuh"

namespace luna::cuda {
namespace fused {
namespace {

// --- Keys -------------------------------------------------------------------

template <int kNumbers, int kHalves>
struct Keys {
  static constexpr int kGroups = kNumbers > 64 ? 2 : kHalves == 2 ? 3 : 4;
  static constexpr int kThreads = kGroups * kGroup + 32;
  using KeyStages = Stages<2, 2, kNumbers, KeyRoom<kNumbers, kHalves>::kMore>;
  using ProjectionRows = ProjectionRowsOf<kNumbers, kHalves>;
  static constexpr int kProjectionBytes = ProjectionRows::Rows::kBytes;

  static constexpr int kProjection = kGroups * KeyStages::kBytes;
  static constexpr int kOnes = kProjection + kGroups * kProjectionBytes;
  static constexpr int kControl = kOnes + Ones<kNumbers>::kBytes;
  static constexpr int kTable =
      kControl +
      (kGroups * static_cast<int>(sizeof(typename KeyStages::Control)) + 15) /
          16 * 16;
  static size_t memory(const TableShape& shape) {
    return kTable + Table::bytes(shape);
  }
};

template <int kNumbers, int kHalves>
__global__ void __launch_bounds__(Keys<kNumbers, kHalves>::kThreads, 1)
    keys_kernel(const __grid_constant__ FusedKeys p) {
  using Form = Keys<kNumbers, kHalves>;
  using KeyStages = typename Form::KeyStages;
  using ProjectionRows = typename Form::ProjectionRows;
  using Rows = Block<kNumbers>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int warp = threadIdx.x % kGroup / 32, g = lane / 4;
  const int worker = group * gridDim.x + blockIdx.x;
  unsigned char* own = memory + group * KeyStages::kBytes;
  const auto stages_of = [&](int group) {
    return KeyStages{memory + group * KeyStages::kBytes,
                     reinterpret_cast<typename KeyStages::Control*>(
                         memory + Form::kControl)[group],
                     {p.tiles, {&p.key, &p.value}, p.weight}};
  };
  if (group == Form::kGroups) {
    ask_for_tiles<Form::kGroups, false>(stages_of);
    return;
  }
  KeyStages stages = stages_of(group);
  wait_for_previous_launch();
  allow_next_launch();
  const ProjectionRows projection_rows(p.map, 0);
  Table table(p.map, memory + Form::kTable);
  table.build<Form::kGroups * kGroup>(p.map);
  unsigned char* projection =
      memory + Form::kProjection + group * Form::kProjectionBytes;
  projection_rows.write(true, projection);
  Ones<kNumbers>::write(memory + Form::kOnes);
  fence_async();
  __syncthreads();
  const typename ProjectionRows::Rows::Deep w(shared_address(projection));
  const uint32_t ones = shared_address(memory + Form::kOnes);
  float bias[kHalves][2];
  read_bias(p.map, 0, bias);
  SumsOf<kNumbers, kHalves> sums[kHalves];
  const int count = uniform(stages.control.count);
  float projected[8 * kHalves];
  for (int i = 0; i < count; ++i) {
    const Tile tile = stages.arrived();
    if (tile.first && p.map.per_head) {
      group_barrier(group);
      ProjectionRows(p.map, tile.head).write(true, projection);
      read_bias(p.map, tile.head, bias);
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
    float weight[2];
    products_begin();
    project_rows<kNumbers, kHalves>(typename Rows::Deep(stages.at(0)), w,
                                    projected);
    read_weights(p.weight, tile, 16 * warp + g, weight);
    products_wait<0>();
    add_keys<kNumbers, kHalves>(projected, bias, weight, table, rows, ones,
                                group, sums, [] {});
    __syncwarp();
    stages.release_only();
    stages.advance();
    if (tile.last) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        sums[half].write(tile, p.states, p.parts, worker, half);
      }
    }
  }
}

// --- The sums of parts -------------------------------------------------

constexpr int kAddGroups = 4;  // each every fourth part, where there are many

template <int kGroups>
__global__ void __launch_bounds__(kGroups* kGroup)
    add_kernel(const __grid_constant__ FusedAdd p) {
  __shared__ float4 shared[kGroups][kGroup];
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
  const int half_words = static_cast<int>(fused_part(p.width) / 4);
  const int part_words = p.halves * half_words;
  const bool live = i < part_words;
  float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
  if (live && !whole) {
    const float4* at = reinterpret_cast<const float4*>(p.parts) + i;
#pragma unroll 8
    for (int part = from + group; part <= to; part += kGroups) {
      const float4 x =
          at[(2 * static_cast<int64_t>(part) + (part == from ? 1 : 0)) *
             part_words];
      total.x += x.x;
      total.y += x.y;
      total.z += x.z;
      total.w += x.w;
    }
  }
  if constexpr (kGroups > 1) {
    shared[group][thread] = total;
    __syncthreads();
  }
  if (group > 0 || !live) return;
#pragma unroll
  for (int j = 1; j < kGroups; ++j) {
    const float4 x = shared[j][thread];
    total.x += x.x;
    total.y += x.y;
    total.z += x.z;
    total.w += x.w;
  }
  const float sums[4] = {total.x, total.y, total.z, total.w};
  const int row_numbers = p.width + 1;
  const int64_t state =
      (static_cast<int64_t>(blockIdx.x) * p.halves + i / half_words) *
      kFeatures * row_numbers;
#pragma unroll
  for (int e = 0; e < 4; ++e) {  // as Sums has them
    const int number = 4 * (i % half_words) + e;
    const int n = number / kGroup, owner = number % kGroup;
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

template <int kNumbers, int kHalves>
struct Queries {
  static constexpr int kGroups = kNumbers > 64 ? 3 : 4;
  static constexpr int kThreads = kGroups * kGroup + 32;
  using QueryStages = Stages<1, kNumbers <= 64 ? 3 : 2, kNumbers>;
  using ProjectionRows = ProjectionRowsOf<kNumbers, kHalves>;
  static constexpr int kProjectionBytes = ProjectionRows::Rows::kBytes;

  static constexpr int kState = kGroups * QueryStages::kBytes;
  static constexpr int kStateBytes = kHalves * Block<kNumbers>::kBytes;
  static constexpr int kNormalizer = kState + kGroups * kStateBytes;
  static constexpr int kProjection = kNormalizer + kGroups * kHalves * 1024;
  static constexpr int kControl = kProjection + kGroups * kProjectionBytes;
  static constexpr int kTable =
      kControl +
      (kGroups * static_cast<int>(sizeof(typename QueryStages::Control)) + 15) /
          16 * 16;
  static size_t memory(const TableShape& shape) {
    return kTable + Table::bytes(shape);
  }
};

template <int kNumbers, int kHalves>
__global__ void __launch_bounds__(Queries<kNumbers, kHalves>::kThreads, 1)
    queries_kernel(const __grid_constant__ FusedQueries p) {
  using Form = Queries<kNumbers, kHalves>;
  using QueryStages = typename Form::QueryStages;
  using ProjectionRows = typename Form::ProjectionRows;
  using Rows = Block<kNumbers>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup);
  const auto stages_of = [&](int group) {
    return QueryStages{memory + group * QueryStages::kBytes,
                       reinterpret_cast<typename QueryStages::Control*>(
                           memory + Form::kControl)[group],
                       {p.tiles, {&p.query}, {}}};
  };
  // All but the last launch are done: only the states must wait.
  if (group == Form::kGroups) {
    ask_for_tiles<Form::kGroups, true>(stages_of);
    return;
  }
  QueryStages stages = stages_of(group);
  const ProjectionRows projection_rows(p.map, 0);
  Table table(p.map, memory + Form::kTable);
  table.build<Form::kGroups * kGroup>(p.map);
  unsigned char* state = memory + Form::kState + group * Form::kStateBytes;
  unsigned char* normalizer =
      memory + Form::kNormalizer + group * kHalves * 1024;
  unsigned char* projection =
      memory + Form::kProjection + group * Form::kProjectionBytes;
  projection_rows.write(true, projection);
  // Rows 0 and 1: the normaliser's high and low parts.
  if (threadIdx.x % kGroup < kHalves * 64) {
    reinterpret_cast<uint4*>(normalizer)[threadIdx.x % kGroup] =
        make_uint4(0, 0, 0, 0);
  }
  fence_async();
  wait_for_previous_launch();
  allow_next_launch();
  __syncthreads();
  const typename ProjectionRows::Rows::Deep w(shared_address(projection));
  float bias[kHalves][2];
  read_bias(p.map, 0, bias);
  const int count = uniform(stages.control.count);
  float projected[8 * kHalves];
  for (int i = 0; i < count; ++i) {
    const Tile tile = stages.arrived();
    if (tile.first) {
      group_barrier(group);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float* from =
            p.states + (static_cast<int64_t>(tile.state) * kHalves + half) *
                           kFeatures * (kNumbers + 1);
        write_state<kNumbers>(from, nullptr, state + half * Rows::kBytes);
        if (threadIdx.x % kGroup < kFeatures) {
          const int feature = threadIdx.x % kGroup;
          write_normalizer(normalizer + half * 1024, feature,
                           from[feature * (kNumbers + 1) + kNumbers]);
        }
      }
      if (p.map.per_head) {
        ProjectionRows(p.map, tile.head).write(true, projection);
        read_bias(p.map, tile.head, bias);
      }
      fence_async();
      group_barrier(group);
    }
    products_begin();
    project_rows<kNumbers, kHalves>(typename Rows::Deep(stages.at(0)), w,
                                    projected);
    products_wait<0>();
    __syncwarp();
    stages.release_only();
    stages.advance();
    answer_queries<kNumbers, kHalves>(
        projected, bias, table, state, normalizer, p.out,
        {p.denominator, p.denominator_batch, p.denominator_head}, p.eps, tile,
        [] {});
  }
}

}  // namespace

size_t forward_memory(const FeatureMap<float>& map) {
  return for_form(map, [&]<int kNumbers, int kHalves>() {
    return std::max(Keys<kNumbers, kHalves>::memory(map.shape),
                    Queries<kNumbers, kHalves>::memory(map.shape));
  });
}

}  // namespace fused

int64_t fused_keys_workers(const FeatureMap<float>& map) {
  return multiprocessors() *
         fused::for_form(map, [&]<int kNumbers, int kHalves>() {
           return fused::Keys<kNumbers, kHalves>::kGroups;
         });
}
int64_t fused_queries_workers(const FeatureMap<float>& map) {
  return multiprocessors() *
         fused::for_form(map, [&]<int kNumbers, int kHalves>() {
           return fused::Queries<kNumbers, kHalves>::kGroups;
         });
}

void fused_keys(const FusedKeys& p, cudaStream_t stream) {
  fused::for_form(p.map, [&]<int kNumbers, int kHalves>() {
    using Form = fused::Keys<kNumbers, kHalves>;
    launch_after(fused::keys_kernel<kNumbers, kHalves>,
                 fused::blocks_of(p.tiles), Form::kThreads,
                 Form::memory(p.map.shape), stream, "fused_keys", p);
  });
}

void fused_add(const FusedAdd& p, cudaStream_t stream) {
  const auto states =
      static_cast<unsigned>(p.tiles.tiles.sequences * p.tiles.heads);
  const int64_t words = p.halves * fused_part(p.width) / 4;
  // Of a pack any sequence may be the long one.
  const bool many = p.tiles.tiles.begin != nullptr ||
                    p.tiles.workers > 8 * static_cast<int64_t>(states);
  launch_after(
      many ? fused::add_kernel<fused::kAddGroups> : fused::add_kernel<1>,
      dim3(states, blocks_for(words, fused::kGroup)),
      (many ? fused::kAddGroups : 1) * fused::kGroup, 0, stream, "fused_add",
      p);
}

void fused_queries(const FusedQueries& p, cudaStream_t stream) {
  fused::for_form(p.map, [&]<int kNumbers, int kHalves>() {
    using Form = fused::Queries<kNumbers, kHalves>;
    launch_after(fused::queries_kernel<kNumbers, kHalves>,
                 fused::blocks_of(p.tiles), Form::kThreads,
                 Form::memory(p.map.shape), stream, "fused_queries", p);
  });
}

}  // namespace luna::cuda
