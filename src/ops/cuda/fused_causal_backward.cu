// The causal backward of one side: queries along their runs, keys and values
// from the runs' ends.

#include "ops/cuda/fused_causal_segments.cuh"

namespace luna::cuda {
namespace fused {
namespace {

constexpr int kGroups = 3;
using BackwardStages = CausalStages<4, 1>;
using Segments = SegmentSums<kGroups>;
enum { kQuery, kKey, kValue, kUpstream };

struct Layout {
  static constexpr int kState = kGroups * BackwardStages::kBytes;
  static constexpr int kOut = kState + kGroups * kTileBytes;   // keys' dv
  static constexpr int kSlopes = kOut + kGroups * kTileBytes;  // du
  static constexpr int kLast = kSlopes + kGroups * kNarrowBytes;
  static constexpr int kProjection = kLast + kGroups * kNarrowBytes;
  static constexpr int kBack = kProjection + 2048;
  static constexpr int kZ = kBack + 2048;
  static constexpr int kD = kZ + kGroups * kFeatures * 4;
  static constexpr int kSegments = kD + kGroups * kTokens * 4;
  static constexpr int kControl =
      kSegments + (static_cast<int>(sizeof(Segments::Control)) + 15) / 16 * 16;
  static constexpr int kTable =
      kControl +
      (kGroups * static_cast<int>(sizeof(BackwardStages::Control)) + 15) / 16 *
          16;
  __host__ __device__ explicit Layout(const TableShape &shape)
      : sums(kTable + (static_cast<int>(Table::bytes(shape)) + 15) / 16 * 16),
        total(sums + static_cast<int>(Segments::bytes(shape))) {}
  int sums, total;
};

/// A lower triangle of ones as an operand whose rows run along the depth. By
/// the whole block.
__device__ __forceinline__ void write_triangle(unsigned char *to) {
  for (int i = threadIdx.x; i < kTokens * kTokens; i += blockDim.x) {
    const int row = i / kTokens, column = i % kTokens;
    *reinterpret_cast<__nv_bfloat16 *>(to + operand_at(row, column)) =
        __float2bfloat16_rn(column <= row ? 1.f : 0.f);
  }
}

__device__ __forceinline__ Tile plain(const CausalTile &t) {
  return {t.state, t.batch, t.head, t.row, t.count, false, false, false, false};
}

template <bool kKeys, bool kGradWeight>
__global__ void __launch_bounds__(kGroups *kGroup, 1)
    backward_kernel(const __grid_constant__ CausalBackward p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int t = lane % 4;
  const int run = group * gridDim.x + blockIdx.x;
  const Layout layout(p.map.shape);
  BackwardStages stages(memory + group * BackwardStages::kBytes,
                        reinterpret_cast<BackwardStages::Control *>(
                            memory + Layout::kControl)[group],
                        p.tiles, {&p.query, &p.key, &p.value, &p.y});
  if (threadIdx.x % kGroup == 0) stages.init();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) {
    stages.control.walk.start(p.tiles, run, kKeys);
    stages.begin();
  }
  const ProjectionRows projection(p.map, 0);
  Table table(p.map, memory + Layout::kTable);
  table.build<kGroups * kGroup>(p.map);
  const int64_t size =
      (p.map.shape.knots + 1) * 2 * kChannels + kProjections * (kWidth + 1);
  float *part = p.sums + blockIdx.x * size;
  Segments segments(
      table, p.map,
      *reinterpret_cast<Segments::Control *>(memory + Layout::kSegments),
      memory + layout.sums, part);
  segments.init();
  unsigned char *state = memory + Layout::kState + group * kTileBytes;
  unsigned char *out = memory + Layout::kOut + group * kTileBytes;
  unsigned char *slopes = memory + Layout::kSlopes + group * kNarrowBytes;
  unsigned char *last = memory + Layout::kLast + group * kNarrowBytes;
  auto *z = reinterpret_cast<float *>(memory + Layout::kZ) + group * kFeatures;
  auto *d_rows =
      reinterpret_cast<float *>(memory + Layout::kD) + group * kTokens;
  if (group == 0) {
    projection.write(true, memory + Layout::kProjection);
    projection.write(false, memory + Layout::kBack);
  }
  if (!kKeys) write_triangle(memory + Layout::kOut);
  if (threadIdx.x % kGroup < kTokens) {  // queries: a column of ones
    reinterpret_cast<uint4 *>(last)[threadIdx.x % kGroup] =
        make_uint4(pack(1.f, 0.f), 0, 0, 0);
  }
  fence_async();
  __syncthreads();
  const DeepOperand w(shared_address(memory + Layout::kProjection));
  const WideOperand back(shared_address(memory + Layout::kBack));
  const DeepOperand triangle(shared_address(memory + Layout::kOut));
  const WideOperand wide_state(shared_address(state));
  const NarrowOperand narrow_slopes(shared_address(slopes)),
      narrow_last(shared_address(last));
  const float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};

  constexpr int kOwn = kKeys ? kKey : kQuery, kOther = kKeys ? kQuery : kKey;
  Running running;
  float grad_w[4] = {}, grad_b[2] = {};
  const int count = uniform(stages.control.count);
  const int rounds = run_length(p.tiles, all_tiles(p.tiles));
  for (int round = 0; round < count; ++round) {
    const CausalTile tile = stages.arrived();
    if (tile.first) {
      running.load(tile,
                   p.parts + static_cast<int64_t>(run + (kKeys ? 1 : -1)) *
                                 p.split * kFusedPart,
                   p.start);
      running.write_operand(state);
      running.write_last(z);
    }
    if (tile.count < kTokens && p.tiles.tiles.begin != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) clear_rows(stages.rows(i), tile.count);
      fence_async();
      group_barrier(group);
    }
    float projected[8], projected_own[8], scores[32];
    products_begin();
    project(DeepOperand(stages.at(kOther)), w, projected);
    project(DeepOperand(stages.at(kOwn)), w, projected_own);
    if constexpr (!kKeys) {
      multiply_deep(scores, stages.at(kUpstream), stages.at(kValue));
      products_commit();
    }
    const TwoRows two(tile);
    float weight[2], inverse[2], guard[2], d[2];
    two.read(p.weight.data, p.weight.batch, p.weight.head, tile, 1.f, weight);
    two.read(p.denominator, p.row_batch, p.row_head, tile, 1.f, inverse);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      guard[r] = fabsf(inverse[r]) > p.eps ? -1.f : 0.f;
    }
    invert(two, tile, p.live, p.eps, inverse);
    if constexpr (kKeys) {
      two.read(p.d, p.row_batch, p.row_head, tile, 0.f, d);
      if (t == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float high = high_part(d[r]);
          *reinterpret_cast<uint32_t *>(last + (two.row + 8 * r) * 16) =
              pack(high, d[r] - high);
          d_rows[two.row + 8 * r] = d[r];
        }
      }
    }
    products_wait<kKeys ? 1 : 2>();
    Found found;
    finish_projection(projected, bias, found.u);
    // The other side's features take the place of what they came from.
    found.look_up(table, kKeys ? inverse : weight);
    store_features(stages.rows(kOther), found.phi);
    fence_async();
    group_barrier(group);
    const WideOperand wide_other(stages.at(kOther));
    uint32_t a[16];
    float c[32];
    const float(&row)[2] = kKeys ? weight : inverse;
    if constexpr (kKeys) {
      products_begin();
      running.add(stages.at(kOther), stages.at(kUpstream), narrow_last);
      products_commit();
      products_wait<1>();
      finish_projection(projected_own, bias, found.u);
      found.look_up(table, {1.f, 1.f});
      products_begin();
      multiply_features<false>(scores, found.phi,
                               DeepOperand(stages.at(kOther)));
      products_commit();
      multiply_features<true>(c, found.phi, wide_state);
      products_commit();
      products_wait<1>();
      keep_triangle<true>(scores, a);
      products_begin();
      multiply_wide(c, a, WideOperand(stages.at(kUpstream)), true);
      products_commit();
      multiply_deep(scores, stages.at(kValue), stages.at(kUpstream));
      products_commit();
      products_wait<1>();
      store_product(out, c, weight[0], weight[1]);
      copy_out(out, p.grad_value, tile);
      products_wait<0>();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 x = reinterpret_cast<const float2 *>(d_rows)[4 * j + t];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          scores[4 * j + 2 * r] += x.x;
          scores[4 * j + 2 * r + 1] += x.y;
        }
      }
      keep_triangle<true>(scores, a);
      products_begin();
      multiply_deep(c, stages.at(kValue), shared_address(state));
      multiply_wide(c, a, wide_other, true);
      products_commit();
      products_wait<0>();
    } else {
      products_wait<0>();
      keep_triangle<false>(scores, a);
      products_begin();
      multiply_deep(c, stages.at(kUpstream), shared_address(state));
      multiply_wide(c, a, wide_other, true);
      products_commit();
      running.add(stages.at(kOther), stages.at(kValue), narrow_last);
      products_commit();
      finish_projection(projected_own, bias, found.u);
      found.look_up(table, inverse);
      float keys[32];  // the normaliser's share of this tile
      products_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        multiply<false, true>(keys, triangle.step(k), wide_other.step(k),
                              k > 0);
      }
      products_commit();
      products_wait<2>();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        d[r] = guard[r] * row_product(found.phi, c, r);
      }
      if (t == 0) {
        float *to = p.d + tile.batch * p.row_batch + tile.head * p.row_head +
                    tile.row + two.row;
        if (two.valid[0]) to[0] = d[0];
        if (two.valid[1]) to[8] = d[1];
      }
      products_wait<0>();
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        c[i] = fmaf(d[i / 2 % 2], keys[i], c[i]);
      }
    }
    if (round == 0) segments.judge(found.u, two.valid);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 x = reinterpret_cast<const float2 *>(z)[8 * t + j];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float *to = &c[4 * j + 2 * r];
        to[0] = kKeys ? to[0] + x.x : fmaf(d[r], x.x, to[0]);
        to[1] = kKeys ? to[1] + x.y : fmaf(d[r], x.y, to[1]);
      }
    }
    if constexpr (kGradWeight) {
      float *to = p.grad_weight + tile.batch * p.row_batch +
                  tile.head * p.row_head + tile.row + two.row;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = row_product(found.phi, c, r);
        if (t == 0 && two.valid[r]) to[8 * r] = x;
      }
    }
    float du[4];
    segments.to_slopes(round, found, c, row, du);
    const uint32_t steps[2] = {pack(du[0], du[1]), pack(du[2], du[3])};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      grad_b[0] += du[2 * r];
      grad_b[1] += du[2 * r + 1];
      *reinterpret_cast<uint32_t *>(slopes + (two.row + 8 * r) * 16 + 4 * t) =
          steps[r];
    }
    fence_async();
    group_barrier(group);  // the state and its last column are read
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<true, true>(grad_w, WideOperand(stages.at(kOwn)).step(k),
                           narrow_slopes.step(k), 1);
    }
    products_commit();
    running.write_operand(state);
    running.write_last(z);
    segments.agree(round);
    segments.add(found, c, row);
    float dx[32];  // not before: c needs the registers
    products_begin();
    multiply<true>(dx, steps[0], steps[1], steps[0], steps[1], back.step(0), 0);
    products_commit();
    products_wait<0>();
    stages.release();
    stages.advance();
    TileRows(p.grad_x, plain(tile)).store(dx, 1.f, 1.f);
    if (kKeys && tile.end && p.results != nullptr) {
      running.write_state(tile.state, p.results);
    }
    segments.end_round();
  }
  segments.finish(count, rounds);
  write_projection_sums<kGroups>(
      grad_w, grad_b, memory, part + (p.map.shape.knots + 1) * 2 * kChannels);
}

}  // namespace
}  // namespace fused

bool causal_fits(const TableShape &shape) {
  using fused::device_attribute;
  const auto most = static_cast<size_t>(
      device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         shape.knots < 65536 && fused::causal_forward_memory(shape) <= most &&
         static_cast<size_t>(fused::Layout(shape).total) <= most;
}

int64_t causal_backward_workers() {
  return fused::multiprocessors() * fused::kGroups;
}

void causal_backward(bool keys, const CausalBackward &p, cudaStream_t stream) {
  launch_after(
      !keys ? fused::backward_kernel<false, false>
            : (p.grad_weight == nullptr ? fused::backward_kernel<true, false>
                                        : fused::backward_kernel<true, true>),
      static_cast<unsigned>(fused_blocks()), fused::kGroups * fused::kGroup,
      static_cast<size_t>(fused::Layout(p.map.shape).total), stream,
      "causal_backward", p);
}

}  // namespace luna::cuda
