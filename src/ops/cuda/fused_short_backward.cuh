#pragma once

// The backward of short sequences: of each head the queries' tiles, then the
// keys', for which the sums' gradients stay in the warpgroup that made them.
// Both sides' tables and sums are one.

#include "ops/cuda/fused_backward_tile.cuh"
#include "ops/cuda/fused_heads.cuh"

namespace luna::cuda::fused {

template <bool kPerHead>
using ShortForm = Form<kWidth, 1, kPerHead, BackwardHeads, true>;

/// A head's state to L2. By a warpgroup.
__device__ __forceinline__ void fetch_state(const float* state) {
  constexpr int kLine = 32, kNumbers = kFeatures * kLd;
  for (int i = static_cast<int>(threadIdx.x % kGroup) * kLine; i < kNumbers;
       i += kGroup * kLine) {
    fetch_ahead(state + i);
  }
}

/// A head's state. All of it is on its way before any is used, since the
/// block's warpgroups come to their heads' ends at once. By a warpgroup.
struct StateNumbers {
  static constexpr int kEach = kFeatures * kWidth / kGroup;
  float s[kEach], z;

  __device__ __forceinline__ explicit StateNumbers(
      const float* __restrict__ state) {
    const int thread = threadIdx.x % kGroup;
    const float* from = state + thread / kWidth * kLd + thread % kWidth;
#pragma unroll
    for (int i = 0; i < kEach; ++i) s[i] = from[2 * i * kLd];
    z = state[thread % kFeatures * kLd + kWidth];
  }
  /// S as an operand of 64 rows, features in their places.
  __device__ __forceinline__ void write(unsigned char* rows, float* last) {
    const int thread = threadIdx.x % kGroup;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = place_of_feature(2 * i + thread / kWidth);
      *reinterpret_cast<__nv_bfloat16*>(
          rows + Block<kWidth>::at(row, thread % kWidth)) =
          __float2bfloat16_rn(s[i]);
    }
    if (thread < kFeatures) last[thread] = z;
  }
};

template <bool kPerHead, bool kGradWeight>
__global__ void __launch_bounds__(ShortForm<kPerHead>::kGroups* kGroup, 1)
    short_backward_kernel(const __grid_constant__ FusedShortBackward p) {
  using F = ShortForm<kPerHead>;
  using BackwardStages = typename F::BackwardStages;
  using ProjectionRows = typename F::ProjectionRows;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup);
  const int worker = group * gridDim.x + blockIdx.x;
  const FeatureMap<float>& map = p.queries.map;
  BackwardStages stages{
      memory + group * BackwardStages::kBytes,
      reinterpret_cast<typename F::Control*>(memory + F::kControl)[group],
      {p.heads, p.queries, p.keys}};
  auto& control = *reinterpret_cast<typename F::Pieces::Control*>(
      memory + F::kPieceControl);
  if (threadIdx.x % kGroup == 0) stages.init();
  if (threadIdx.x == 0) F::Pieces::init(control);
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  const ProjectionRows projection_rows(map, 0);
  float* part = p.queries.sums + blockIdx.x * feature_sums_size(map);
  typename F::Pieces pieces(map, PieceImage(p.queries.pieces), p.queries.rows,
                            control, memory + F::kTable, part);
  const Places<F, 1, kPerHead> at(memory, group);
  if (group == 0) {
    projection_rows.write(true, at.projection);
    projection_rows.write(false, at.projection_back);
  }
  fence_async();
  __syncthreads();
  float bias[1][2];
  read_bias(map, 0, bias);

  ProjectionSums<kWidth, 1> projection;
  float factors[2];
  const auto read_factors = [&](const HeadTile& tile) {
    read_row_factors(stages.source.row(tile), tile, at.row, factors);
  };
  const int query_tiles = tiles_in(p.heads.queries);
  const int key_tiles = tiles_in(p.heads.keys);
  pieces.window = query_tiles + key_tiles;
  const int heads = uniform(heads_of(p.heads, worker));
  const int count = heads * pieces.window;
  // The first warpgroup has as many heads as any of the block's.
  const int rounds =
      heads_of(p.heads, static_cast<int>(blockIdx.x)) * pieces.window;
  int round = 0;
  for (int state = worker; round < count; state += p.heads.workers) {
    SumsOf<kWidth> sums[1];
    constexpr int kStateNumbers = kFeatures * kLd;
    const float* from =
        p.queries.states + static_cast<int64_t>(state) * kStateNumbers;
    // The last tile's barrier came after all products with these.
    StateNumbers(from).write(at.state, at.z);
    if constexpr (kPerHead) {
      group_barrier(group);
      const int head = state % p.heads.heads;
      const ProjectionRows head_rows(map, head);
      head_rows.write(true, at.projection);
      head_rows.write(false, at.projection_back);
      read_bias(map, head, bias);
    }
    fence_async();
    group_barrier(group);
    for (int i = 0; i < query_tiles; ++i, ++round) {
      const HeadTile tile = stages.arrived();
      backward_tile<F, kWidth, 1, kPerHead, false, false>(
          p.queries, at, stages, pieces, tile, round, count, bias, factors,
          sums, projection, read_factors);
    }
    group_barrier(group);
    sums[0].write_operands(at.state, at.extra);
    sums[0].each_last([&](int feature, float z) { at.z[feature] = z; });
    fence_async();
    group_barrier(group);
    if (round + key_tiles < count) {
      fetch_state(from + static_cast<int64_t>(p.heads.workers) * kStateNumbers);
    }
    for (int i = 0; i < key_tiles; ++i, ++round) {
      const HeadTile tile = stages.arrived();
      backward_tile<F, kWidth, 1, kPerHead, true, kGradWeight>(
          p.keys, at, stages, pieces, tile, round, count, bias, factors, sums,
          projection, read_factors);
    }
    if constexpr (kPerHead) {
      add_weights<kWidth, 1>(
          projection.w, projection.b,
          p.queries.head_sums + (static_cast<int64_t>(worker) * p.heads.heads +
                                 state % p.heads.heads) *
                                    F::kHeadSums,
          true);
    }
  }
  pieces.finish(count, rounds);
  if constexpr (!kPerHead) {  // where states were
    write_weights<kWidth, 1, F::kGroups>(
        projection.w, projection.b, memory + F::kState,
        part + (map.shape.knots + 1) * 2 * kChannels);
  }
}

template <bool kPerHead>
void launch_short_backward(const FusedShortBackward& p, cudaStream_t stream) {
  using F = ShortForm<kPerHead>;
  launch_after(
      p.keys.grad_weight == nullptr ? short_backward_kernel<kPerHead, false>
                                    : short_backward_kernel<kPerHead, true>,
      static_cast<unsigned>(fused_blocks()), F::kGroups * kGroup,
      F::memory(p.queries.map.shape), stream, "fused_short_backward", p);
}

// Compiled in a file of its own.
extern template void launch_short_backward<true>(const FusedShortBackward&,
                                                 cudaStream_t);

}  // namespace luna::cuda::fused
