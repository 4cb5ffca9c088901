#pragma once

// The fused backward of one side: queries, or keys and values.

#include "ops/cuda/fused_backward_tile.cuh"

namespace luna::cuda::fused {

template <int kNumbers, int kHalves, bool kPerHead, bool kKeys,
          bool kGradWeight>
__global__ void __launch_bounds__(
    Form<kNumbers, kHalves, kPerHead>::kGroups* kGroup, 1)
    backward_kernel(const __grid_constant__ FusedBackward p) {
  using F = Form<kNumbers, kHalves, kPerHead>;
  using Rows = typename F::Rows;
  using BackwardStages = typename F::BackwardStages;
  using ProjectionRows = typename F::ProjectionRows;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup);
  const int worker = group * gridDim.x + blockIdx.x;
  unsigned char* own = memory + group * BackwardStages::kBytes;
  BackwardStages stages{
      own,
      reinterpret_cast<typename F::Control*>(memory + F::kControl)[group],
      p.tiles,
      {&p.x, &p.y},
      p.row};
  auto& control = *reinterpret_cast<typename F::Pieces::Control*>(
      memory + F::kPieceControl);
  if (threadIdx.x % kGroup == 0) stages.init();
  if (threadIdx.x == 0) F::Pieces::init(control);
  // All but the last launch are done: of keys only the states must wait.
  if (!kKeys) wait_for_previous_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  const ProjectionRows projection_rows(p.map, 0);
  float* part = p.sums + blockIdx.x * feature_sums_size(p.map);
  typename F::Pieces pieces(p.map, PieceImage(p.pieces), p.rows, control,
                            memory + F::kTable, part);
  const Places<F, kHalves, kPerHead> at(memory, group);
  if (group == 0) {
    projection_rows.write(true, at.projection);
    projection_rows.write(false, at.projection_back);
  }
  fence_async();
  if (kKeys) wait_for_previous_launch();
  allow_next_launch();
  __syncthreads();
  float bias[kHalves][2];
  read_bias(p.map, 0, bias);

  SumsOf<kNumbers, kHalves> state_sums[kHalves];
  ProjectionSums<kNumbers, kHalves> projection;
  float factors[2];
  const auto read_factors = [&](const Tile& tile) {
    read_row_factors(p.row, tile, at.row, factors);
  };
  const int count = uniform(stages.control.count);
  const int rounds = run_length(p.tiles, all_tiles(p.tiles));
  for (int round = 0; round < count; ++round) {
    const Tile tile = stages.arrived();
    unsigned char* rows = own + stages.slot * BackwardStages::kStageBytes;
    const bool clear = tile.count < kTokens && p.tiles.tiles.begin != nullptr;
    if (tile.first || clear) {
      group_barrier(group);
      if (tile.first) {
        const float* from = p.states + static_cast<int64_t>(tile.state) *
                                           kHalves * kFeatures * (kNumbers + 1);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          write_state<kNumbers>(
              from + half * kFeatures * (kNumbers + 1),
              at.state + half * Rows::kBytes,
              kKeys ? at.extra + half * F::kExtraBytes : nullptr);
        }
        const int feature = threadIdx.x % kGroup;
        if (feature < kHalves * kFeatures) {
          at.z[feature] = from[feature * (kNumbers + 1) + kNumbers];
        }
        if constexpr (kPerHead) {
          const ProjectionRows head_rows(p.map, tile.head);
          head_rows.write(true, at.projection);
          head_rows.write(false, at.projection_back);
          read_bias(p.map, tile.head, bias);
        }
      }
      if (clear) {
        clear_rows<kNumbers>(rows, tile.count);
        clear_rows<kNumbers>(rows + Rows::kBytes, tile.count);
      }
      fence_async();
      group_barrier(group);
    }
    backward_tile<F, kNumbers, kHalves, kPerHead, kKeys, kGradWeight>(
        p, at, stages, pieces, tile, round, count, bias, factors, state_sums,
        projection, read_factors);
    if (!kKeys && tile.last) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        state_sums[half].write(tile, p.results, p.parts, worker, half);
      }
    }
    if (kPerHead && tile.last) {
      add_weights<kNumbers, kHalves>(
          projection.w, projection.b,
          p.head_sums +
              (static_cast<int64_t>(worker) * p.tiles.heads + tile.head) *
                  F::kHeadSums,
          true);
    }
  }
  pieces.finish(count, rounds);
  if constexpr (!kPerHead) {  // where states were
    write_weights<kNumbers, kHalves, F::kGroups>(
        projection.w, projection.b, memory + F::kState,
        part + (p.map.shape.knots + 1) * 2 * kChannels);
  }
}

template <int kNumbers, int kHalves, bool kPerHead>
void launch_backward(bool keys, const FusedBackward& p, cudaStream_t stream) {
  using F = Form<kNumbers, kHalves, kPerHead>;
  const auto kernel =
      !keys ? backward_kernel<kNumbers, kHalves, kPerHead, false, false>
            : (p.grad_weight == nullptr
                   ? backward_kernel<kNumbers, kHalves, kPerHead, true, false>
                   : backward_kernel<kNumbers, kHalves, kPerHead, true, true>);
  launch_after(kernel, static_cast<unsigned>(fused_blocks()),
               F::kGroups * kGroup, F::memory(p.map.shape), stream,
               "fused_backward", p);
}

// Each is compiled in one file: fused_backward.cu has those of 8 projections
// for all heads, _heads.cu of 8 for each head, _halves.cu of 16.
#define LUNA_BACKWARD(...)                                               \
  template void launch_backward<__VA_ARGS__>(bool, const FusedBackward&, \
                                             cudaStream_t)
extern LUNA_BACKWARD(32, 1, true);
extern LUNA_BACKWARD(64, 1, true);
extern LUNA_BACKWARD(128, 1, true);
extern LUNA_BACKWARD(32, 2, false);
extern LUNA_BACKWARD(64, 2, false);
extern LUNA_BACKWARD(32, 2, true);
extern LUNA_BACKWARD(64, 2, true);

}  // namespace luna::cuda::fused
