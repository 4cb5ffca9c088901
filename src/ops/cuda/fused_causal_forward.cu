// The causal forward: the walk along each run.

#include "ops/cuda/fused_causal.cuh"

namespace luna::cuda {
namespace fused {
namespace {

constexpr int kGroups = 3;
using ForwardStages = Stages<3, 2>;
enum { kQuery, kKey, kValue };

struct ForwardLayout {
  static constexpr int kState = kGroups * ForwardStages::kBytes;
  static constexpr int kNormalizer = kState + kGroups * kTileBytes;
  static constexpr int kProjection = kNormalizer + kGroups * 1024;
  static constexpr int kOnes = kProjection + 2048;
  static constexpr int kControl = kOnes + kNarrowBytes;
  static constexpr int kTable =
      kControl +
      aligned(kGroups * static_cast<int>(sizeof(ForwardStages::Control)));
};

/// The normaliser's high and low parts, as rows 0 and 1 of an operand.
__device__ __forceinline__ void write_normalizer(const Running& running,
                                                 unsigned char* to) {
  const int thread = threadIdx.x % kGroup;
  if (thread % 4 != 0) return;
  const int place = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float x = running.z[2 * r] + running.z[2 * r + 1];
    const float high = high_part(x);
    *reinterpret_cast<__nv_bfloat16*>(to + operand_at(0, place + 8 * r)) =
        __float2bfloat16_rn(high);
    *reinterpret_cast<__nv_bfloat16*>(to + operand_at(1, place + 8 * r)) =
        __float2bfloat16_rn(x - high);
  }
}

__global__ void __launch_bounds__(kGroups* kGroup, 1)
    forward_kernel(const __grid_constant__ CausalForward p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int t = lane % 4;
  const int run = group * gridDim.x + blockIdx.x;
  ForwardStages stages{memory + group * ForwardStages::kBytes,
                       reinterpret_cast<ForwardStages::Control*>(
                           memory + ForwardLayout::kControl)[group],
                       p.tiles,
                       {&p.query, &p.key, &p.value},
                       p.weight};
  if (threadIdx.x % kGroup == 0) stages.init();
  // Where parts come from a launch, all before it is done: only they must wait.
  if (p.parts == nullptr) wait_for_previous_launch();
  if (threadIdx.x % kGroup == 0) {
    stages.begin(run);
  }
  const ProjectionRows projection(p.map, 0);
  Table table(p.map, memory + ForwardLayout::kTable);
  table.build<kGroups * kGroup>(p.map);
  unsigned char* state = memory + ForwardLayout::kState + group * kTileBytes;
  unsigned char* normalizer =
      memory + ForwardLayout::kNormalizer + group * 1024;
  if (group == 0) projection.write(true, memory + ForwardLayout::kProjection);
  write_ones(memory + ForwardLayout::kOnes);
  if (threadIdx.x % kGroup < 64) {
    reinterpret_cast<uint4*>(normalizer)[threadIdx.x % kGroup] =
        make_uint4(0, 0, 0, 0);
  }
  fence_async();
  wait_for_previous_launch();
  allow_next_launch();
  __syncthreads();
  const DeepOperand w(shared_address(memory + ForwardLayout::kProjection)),
      z(shared_address(normalizer));
  const WideOperand s(shared_address(state));
  const NarrowOperand ones(shared_address(memory + ForwardLayout::kOnes));
  const float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  Running running;
  const int count = uniform(stages.control.count);
  for (int i = 0; i < count; ++i) {
    const Tile tile = stages.arrived();
    if (tile.first) {
      running.load(tile, p.parts + static_cast<int64_t>(run - 1) * kFusedPart,
                   p.start);
      running.write_operand(state);
      write_normalizer(running, normalizer);
    }
    if (tile.count < kTokens && p.tiles.tiles.begin != nullptr) {
      clear_rows(stages.rows(kKey), tile.count);
      clear_rows(stages.rows(kValue), tile.count);
      fence_async();
      group_barrier(group);
    }
    float projected[8], projected_query[8], u[4];
    products_begin();
    project(DeepOperand(stages.at(kKey)), w, projected);
    project(DeepOperand(stages.at(kQuery)), w, projected_query);
    const TwoRows two(tile);
    float weight[2];
    two.read(p.weight.data, p.weight.batch, p.weight.head, tile, 1.f, weight);
    products_wait<1>();
    finish_projection(projected, bias, u);
    int segment[4];
    uint32_t phi[4][4];
    uint4 slope[4];
    float unit[4];
    table.look_up(u, weight, segment, phi, slope, unit);
    store_features(stages.rows(kKey), phi);
    fence_async();
    group_barrier(group);
    products_begin();
    running.add(stages.at(kKey), stages.at(kValue), ones);
    products_commit();
    products_wait<1>();
    finish_projection(projected_query, bias, u);
    table.look_up(u, {1.f, 1.f}, segment, phi, slope, unit);
    float c[32], d[4], scores[32];
    products_begin();
    multiply_features<false>(scores, phi, DeepOperand(stages.at(kKey)));
    multiply_features<false>(d, phi, z);
    multiply_features<true>(c, phi, s);
    products_commit();
    products_wait<0>();
    group_barrier(group);  // the state is read
    uint32_t a[16];
    keep_triangle<false>(scores, a);
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<true>(d, a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3],
                     ones.step(k), 1);
    }
    multiply_wide(c, a, WideOperand(stages.at(kValue)), true);
    products_commit();
    running.write_operand(state);
    write_normalizer(running, normalizer);
    products_wait<0>();
    // Thread 0 of the quad has the denominator's two parts.
    const float den[2] = {__shfl_sync(0xffffffffu, d[0] + d[1], lane & ~3),
                          __shfl_sync(0xffffffffu, d[2] + d[3], lane & ~3)};
    store_product(stages.rows(kQuery), c, 1.f / guarded(den[0], p.eps),
                  1.f / guarded(den[1], p.eps));
    copy_out(stages.rows(kQuery), p.out, tile);
    fence_async();
    stages.release();
    stages.advance();
    if (p.denominator != nullptr && t == 0) {
      float* to = p.denominator + tile.batch * p.denominator_batch +
                  tile.head * p.denominator_head + tile.row + two.row;
      if (two.valid[0]) to[0] = den[0];
      if (two.valid[1]) to[8] = den[1];
    }
    if (tile.end) running.write_state(tile.state, p.results);
  }
}

}  // namespace

size_t causal_forward_memory(const TableShape& shape) {
  return ForwardLayout::kTable + Table::bytes(shape);
}

}  // namespace fused

int64_t causal_forward_workers() { return multiprocessors() * fused::kGroups; }

void causal_forward(const CausalForward& p, cudaStream_t stream) {
  launch_after(fused::forward_kernel, fused::blocks_of(p.tiles),
               fused::kGroups * fused::kGroup,
               fused::causal_forward_memory(p.map.shape), stream,
               "causal_forward", p);
}

}  // namespace luna::cuda
