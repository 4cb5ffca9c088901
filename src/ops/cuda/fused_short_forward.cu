// The forward of short sequences: S and z of a head stay in the warpgroup that
// made them, as operands of the products with its queries. A tile is projected
// while the products of the one before go on.

#include "ops/cuda/fused_forward.cuh"
#include "ops/cuda/fused_heads.cuh"
#include "ops/cuda/fused_pieces.h"

namespace luna::cuda {
namespace fused {
namespace {

/// A head's state on its way out: a warp's 16 rows of features at a time, from
/// two stages' places for values, which queries do not need. (Stores of single
/// numbers, whose rows begin anywhere, took a quarter of the time at 128
/// tokens.)
template <int kNumbers>
struct StateRows {
  static constexpr int kLd = kNumbers + 1;
  static constexpr int kBytes = 16 * kLd * 4;
  /// What two warps' rows need beyond values' place, in whole operands.
  static constexpr int kRoom =
      (2 * kBytes - Block<kNumbers>::kBytes + 1023) / 1024 * 1024;

  /// By a warp, to `state` from shared memory at `rows`.
  __device__ __forceinline__ static void send(const SumsOf<kNumbers>& sums,
                                              float* rows, float* state) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // Half of the threads have their turns the other way round, against bank
    // conflicts.
    const bool turned = t >= 2;
    float* const at = rows + g * kLd + 2 * t;
    float* const first = at + (turned ? 16 : 0);
    float* const second = at + (turned ? 0 : 16);
#pragma unroll
    for (int i = 0; i < kNumbers / 2; ++i) {
      const int r = i / 2 % 2, column = i / 4 * 8 + i % 2;
      if (column % 32 >= 16) continue;  // the one 16 columns before has it
      const float x = sums.s[i], y = sums.s[i + 8];
      first[8 * r * kLd + column] = turned ? y : x;
      second[8 * r * kLd + column] = turned ? x : y;
    }
    if (t == 0) {
      at[kNumbers] = sums.z[0] + sums.z[1];
      at[8 * kLd + kNumbers] = sums.z[2] + sums.z[3];
    }
    fence_async();
    __syncwarp();
    if (lane == 0) {
      copy_back(state + threadIdx.x % kGroup / 32 * 16 * kLd,
                shared_address(rows), kBytes);
    }
    __syncwarp();
  }
};

template <int kNumbers>
struct Short {
  static constexpr int kGroups = 4;
  using Rows = Block<kNumbers>;
  static_assert(KeyRoom<kNumbers, 1>::kMore == 0);
  using HeadStages =
      Stages<2, 2, kNumbers, StateRows<kNumbers>::kRoom, ForwardHeads>;
  using ProjectionRows = ProjectionRowsOf<kNumbers, 1>;
  static constexpr int kProjectionBytes = ProjectionRows::Rows::kBytes;

  static constexpr int kState = kGroups * HeadStages::kBytes;
  static constexpr int kNormalizer = kState + kGroups * Rows::kBytes;
  static constexpr int kProjection = kNormalizer + kGroups * 1024;
  static constexpr int kOnes = kProjection + kGroups * kProjectionBytes;
  static constexpr int kControl = kOnes + Ones<kNumbers>::kBytes;
  static constexpr int kTable =
      kControl +
      aligned(kGroups * static_cast<int>(sizeof(typename HeadStages::Control)));
  static size_t memory(const TableShape& shape) {
    return kTable + Table::bytes(shape);
  }
};

template <int kNumbers, bool kPerHead>
__global__ void __launch_bounds__(Short<kNumbers>::kGroups* kGroup, 1)
    short_kernel(const __grid_constant__ FusedShort p) {
  using Form = Short<kNumbers>;
  using HeadStages = typename Form::HeadStages;
  using ProjectionRows = typename Form::ProjectionRows;
  using Rows = typename Form::Rows;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int row = threadIdx.x % kGroup / 32 * 16 + lane / 4;
  const int worker = group * gridDim.x + blockIdx.x;
  unsigned char* own = memory + group * HeadStages::kBytes;
  HeadStages stages{own,
                    reinterpret_cast<typename HeadStages::Control*>(
                        memory + Form::kControl)[group],
                    {p.heads, &p.query, &p.key, &p.value, p.weight}};
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
  if (threadIdx.x % kGroup < 64) {  // all rows but two stay so
    reinterpret_cast<uint4*>(normalizer)[threadIdx.x % kGroup] =
        make_uint4(0, 0, 0, 0);
  }
  Ones<kNumbers>::write(memory + Form::kOnes);
  fence_async();
  __syncthreads();
  const typename ProjectionRows::Rows::Deep w(shared_address(projection));
  const uint32_t ones = shared_address(memory + Form::kOnes);
  float bias[1][2], projected[8];
  read_bias(p.map, 0, bias);
  const int heads = uniform(heads_of(p.heads, worker));
  const int key_tiles = tiles_in(p.heads.keys);
  const int query_tiles = tiles_in(p.heads.queries);
  // Of the tile at `x`, for its turn.
  const auto project = [&](uint32_t x) {
    products_begin();
    project_rows<kNumbers, 1>(typename Rows::Deep(x), w, projected);
  };
  // Where each head has its own projection, its first tile must wait for it.
  if constexpr (!kPerHead) {
    if (heads > 0) stages.arrived();
    project(stages.at(0));  // of anything, where there is none
    products_wait<0>();
  }
  for (int head = 0; head < heads; ++head) {
    SumsOf<kNumbers> sums[1];
    for (int i = 0; i < key_tiles; ++i) {
      const HeadTile tile = stages.arrived();
      if (kPerHead && i == 0) {
        group_barrier(group);
        ProjectionRows(p.map, tile.head).write(true, projection);
        read_bias(p.map, tile.head, bias);
        fence_async();
        group_barrier(group);
        project(stages.at(0));
      }
      float weight[2];
      read_weights(p.weight, tile, row, weight);
      products_wait<0>();
      add_keys<kNumbers, 1>(projected, bias, weight, table, stages.rows(0),
                            ones, group, sums,
                            [&] { project(stages.next_arrived()); });
      if (i < key_tiles - 1) {
        stages.release();
        stages.advance();
      }
    }
    // The warps have passed the last tile's barrier, and with it the products
    // of the head before.
    sums[0].write_operands(nullptr, state);
    sums[0].each_last([&](int feature, float z) {
      write_normalizer(normalizer, feature, z);
    });
    fence_async();
    group_barrier(group);  // all are done with the last tile, too
    // Its stage is filled with queries, or with the next head's keys.
    if (query_tiles > 1) stages.release();
    using Out = StateRows<kNumbers>;
    const int warp = threadIdx.x % kGroup / 32;
    Out::send(sums[0],
              reinterpret_cast<float*>(
                  own + (stages.slot ^ warp / 2) * HeadStages::kStageBytes +
                  Rows::kBytes + warp % 2 * Out::kBytes),
              p.states + static_cast<int64_t>(worker + head * p.heads.workers) *
                             kFeatures * Out::kLd);
    if (query_tiles == 1) {
      copies_back_read();
      stages.release();
    }
    stages.advance();
    for (int i = 0; i < query_tiles; ++i) {
      const HeadTile tile = stages.arrived();
      const auto release = [&] {
        stages.release();
        stages.advance();
      };
      if (i > 0) release();
      const bool more = i < query_tiles - 1 || head < heads - 1;
      answer_queries<kNumbers, 1>(
          projected, bias, table, state, normalizer, p.out,
          {p.denominator, p.denominator_batch, p.denominator_head}, p.eps, tile,
          [&] {
            if (i == 0) {  // the state is out by now
              copies_back_read();
              release();
            }
            if (more) stages.arrived();
            project(stages.at(0));
          });
    }
  }
  copies_back_done();
}

}  // namespace
}  // namespace fused

bool fused_short_fits(const FeatureMap<float>& map) {
  return map.width == 64 && map.projections == fused::kProjections &&
         fused::Short<64>::memory(map.shape) <=
             static_cast<size_t>(fused::kSharedBytes) &&
         fused_short_backward_pieces(map) >= fused_least_pieces(map.shape);
}
int64_t fused_short_workers() {
  return multiprocessors() * fused::Short<64>::kGroups;
}
void fused_short(const FusedShort& p, cudaStream_t stream) {
  using Form = fused::Short<64>;
  launch_after(p.map.per_head ? fused::short_kernel<64, true>
                              : fused::short_kernel<64, false>,
               static_cast<unsigned>(multiprocessors()),
               Form::kGroups * fused::kGroup, Form::memory(p.map.shape), stream,
               "fused_short", p);
}

}  // namespace luna::cuda
