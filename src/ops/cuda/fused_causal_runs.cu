// What runs of tiles hand on: the sums at their ends, and the scan of these.

#include <algorithm>

#include "ops/cuda/fused_causal.cuh"

namespace luna::cuda {
namespace fused {
namespace {

constexpr int kGroups = 4;

// --- Keys --------------------------------------------------------------

using KeyStages = Stages<2, 2>;

struct KeyLayout {
  static constexpr int kOnes = kGroups * KeyStages::kBytes;
  static constexpr int kProjection = kOnes + kNarrowBytes;
  static constexpr int kControl = kProjection + 2048;
  static constexpr int kTable =
      kControl +
      aligned(kGroups * static_cast<int>(sizeof(KeyStages::Control)));
};

template <bool kWrite>
__global__ void __launch_bounds__(kGroups* kGroup, 1)
    key_sums_kernel(const __grid_constant__ CausalKeySums p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup);
  const int t = threadIdx.x % 4;
  const int run = group * gridDim.x + blockIdx.x;
  KeyStages stages{memory + group * KeyStages::kBytes,
                   reinterpret_cast<KeyStages::Control*>(
                       memory + KeyLayout::kControl)[group],
                   p.tiles,
                   {&p.key, &p.value},
                   p.weight};
  if (threadIdx.x % kGroup == 0) stages.init();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) {
    if (run >= p.tiles.workers) {
      stages.control.walk.left = 0;
    } else if (kWrite) {
      stages.control.walk.start(p.tiles, run, false);
    } else {
      stages.control.walk.start_end(p.tiles, run, false);
    }
    stages.begin();
  }
  const ProjectionRows projection(p.map, 0);
  Table table(p.map, memory + KeyLayout::kTable);
  table.build<kGroups * kGroup>(p.map);
  if (group == 0) projection.write(true, memory + KeyLayout::kProjection);
  write_ones(memory + KeyLayout::kOnes);
  fence_async();
  __syncthreads();
  const DeepOperand w(shared_address(memory + KeyLayout::kProjection));
  const NarrowOperand ones(shared_address(memory + KeyLayout::kOnes));
  const float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  Running sums;
  const int count = uniform(stages.control.count);
  for (int i = 0; i < count; ++i) {
    const Tile tile = stages.arrived();
    if (tile.count < kTokens && p.tiles.tiles.begin != nullptr) {
      clear_rows(stages.rows(0), tile.count);
      clear_rows(stages.rows(1), tile.count);
      fence_async();
      group_barrier(group);
    }
    float projected[8], u[4];
    products_begin();
    project(DeepOperand(stages.at(0)), w, projected);
    const TwoRows two(tile);
    float weight[2];
    two.read(p.weight.data, p.weight.batch, p.weight.head, tile, 1.f, weight);
    products_wait<0>();
    finish_projection(projected, bias, u);
    int segment[4];
    uint32_t phi[4][4];
    uint4 slope[4];
    float unit[4];
    table.look_up(u, weight, segment, phi, slope, unit);
    store_features(stages.rows(0), phi);
    fence_async();
    group_barrier(group);
    if (kWrite && tile.fresh) sums.clear();
    products_begin();
    sums.add(stages.at(0), stages.at(1), ones);
    products_commit();
    if (kWrite) copy_out(stages.rows(0), p.features, tile);
    products_wait<0>();
    stages.release();
    stages.advance();
  }
  if (run < p.tiles.workers && p.parts != nullptr) {
    sums.write_part(p.parts + static_cast<int64_t>(run) * kFusedPart);
  }
}

// --- Queries -----------------------------------------------------------

using QueryStages = Stages<2, 3>;

struct QueryLayout {
  static constexpr int kLast = kGroups * QueryStages::kBytes;
  static constexpr int kControl = kLast + kGroups * kNarrowBytes;
  static constexpr int kTotal =
      kControl + kGroups * static_cast<int>(sizeof(QueryStages::Control));
};

__global__ void __launch_bounds__(kGroups* kGroup, 1)
    query_sums_kernel(const __grid_constant__ CausalQuerySums p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup);
  const int run = group * gridDim.x + blockIdx.x;
  QueryStages stages{memory + group * QueryStages::kBytes,
                     reinterpret_cast<QueryStages::Control*>(
                         memory + QueryLayout::kControl)[group],
                     p.tiles,
                     {&p.features, &p.y},
                     p.d};
  if (threadIdx.x % kGroup == 0) stages.init();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) {
    fence_async_global();
    if (run < p.tiles.workers) {
      stages.control.walk.start_end(p.tiles, run, true);
    } else {
      stages.control.walk.left = 0;
    }
    stages.begin();
  }
  unsigned char* last = memory + QueryLayout::kLast + group * kNarrowBytes;
  if (threadIdx.x % kGroup < kTokens) {
    reinterpret_cast<uint4*>(last)[threadIdx.x % kGroup] =
        make_uint4(0, 0, 0, 0);
  }
  __syncthreads();
  const NarrowOperand narrow(shared_address(last));
  Running sums;
  const int count = uniform(stages.control.count);
  for (int i = 0; i < count; ++i) {
    const Tile tile = stages.arrived();
    if (tile.count < kTokens && p.tiles.tiles.begin != nullptr) {
      clear_rows(stages.rows(0), tile.count);
      clear_rows(stages.rows(1), tile.count);
    }
    const TwoRows two(tile);
    float d[2];
    two.read(p.d.data, p.d.batch, p.d.head, tile, 0.f, d);
    write_last(last, two, d);
    fence_async();
    group_barrier(group);
    products_begin();
    sums.add(stages.at(0), stages.at(1), narrow);
    products_commit();
    products_wait<0>();
    stages.release();
    stages.advance();
    group_barrier(group);  // `last` is read
  }
  if (run < p.tiles.workers) {
    sums.write_part(p.parts + static_cast<int64_t>(run) * kFusedPart);
  }
}

// --- The scan ----------------------------------------------------------

constexpr int kScanThreads = 128;
constexpr int kAhead = 8;

__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(const __grid_constant__ CausalScan p) {
  wait_for_previous_launch();
  allow_next_launch();
  const int head = static_cast<int>(blockIdx.x) % p.tiles.heads;
  const int sequence = static_cast<int>(blockIdx.x) / p.tiles.heads;
  const int i = blockIdx.y * kScanThreads + threadIdx.x;
  const int each = run_length(p.tiles, all_tiles(p.tiles));
  Piece piece;
  sequence_of(p.tiles.tiles, sequence, piece);
  const int tiles = static_cast<int>((piece.length + kTokens - 1) / kTokens);
  const int at = place_in_state(i / kGroup, i % kGroup);
  const int64_t state = static_cast<int64_t>(blockIdx.x) * kFeatures * kLd;
  float total = p.start == nullptr || at < 0 ? 0.f : p.start[state + at];
  if (tiles == 0) {
    if (p.results != nullptr && at >= 0) p.results[state + at] = total;
    return;
  }
  const int begin =
      static_cast<int>(first_piece(p.tiles.tiles, sequence)) * p.tiles.heads +
      head * tiles;
  const int from = begin / each, to = (begin + tiles - 1) / each;
  const int count = to - from;  // of runs that hand on
  float* run =
      p.parts + static_cast<int64_t>(p.backwards ? to : from) * kFusedPart + i;
  const int64_t step = (p.backwards ? -1 : 1) * kFusedPart;
  for (int k = 0; k < count; k += kAhead) {
    float x[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      x[j] = k + j < count ? run[(k + j) * step] : 0.f;
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (k + j >= count) break;
      total += x[j];
      run[(k + j) * step] = total;
    }
  }
}

size_t key_memory(const TableShape& shape) {
  return KeyLayout::kTable + Table::bytes(shape);
}

}  // namespace

size_t causal_runs_memory(const TableShape& shape) {
  return std::max<size_t>(key_memory(shape), QueryLayout::kTotal);
}

}  // namespace fused

void causal_key_sums(const CausalKeySums& p, cudaStream_t stream) {
  launch_after(p.features.data == nullptr ? fused::key_sums_kernel<false>
                                          : fused::key_sums_kernel<true>,
               static_cast<unsigned>(multiprocessors()),
               fused::kGroups * fused::kGroup, fused::key_memory(p.map.shape),
               stream, "causal_key_sums", p);
}

void causal_query_sums(const CausalQuerySums& p, cudaStream_t stream) {
  launch_after(fused::query_sums_kernel,
               static_cast<unsigned>(multiprocessors()),
               fused::kGroups * fused::kGroup, fused::QueryLayout::kTotal,
               stream, "causal_query_sums", p);
}

void causal_scan(const CausalScan& p, cudaStream_t stream) {
  const auto states =
      static_cast<unsigned>(p.tiles.tiles.sequences * p.tiles.heads);
  if (states == 0) return;
  launch_after(fused::scan_kernel,
               dim3(states, blocks_for(kFusedPart, fused::kScanThreads)),
               fused::kScanThreads, 0, stream, "causal_scan", p);
}

}  // namespace luna::cuda
