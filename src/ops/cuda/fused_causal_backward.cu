// The causal backward of one side: queries along their runs, keys and values
// from the runs' ends.

#include "ops/cuda/fused_causal.cuh"
#include "ops/cuda/fused_piece_sums.cuh"

namespace luna::cuda {
namespace fused {
namespace {

constexpr int kGroups = 3;
using Pieces = PieceSums<kGroups, 1, true>;
enum { kOwn, kOther, kValue, kUpstream, kTensors };

/// A warpgroup's tile of each tensor. There is no room for a second stage, but
/// the next tile's rows of all tensors but the first are on their way while
/// the gradient of the features is worked on.
struct BackwardStages {
  static constexpr int kBytes = kTensors * kTileBytes;
  struct Control {
    uint64_t full, empty;
    Tile tiles[2];  ///< this one and the next in turn
    Walk walk;
    int count;
  };

  /// By thread 0; a barrier of the block comes after.
  __device__ void init() {
    barrier_init(shared_address(&control.full), 1);
    barrier_init(shared_address(&control.empty), 4);
    barrier_init_fence();
  }
  /// By thread 0, when the walk has started.
  __device__ void begin() {
    control.count = control.walk.left;
    if (control.count == 0) return;
    ask(0);
    copy(kOwn, control.tiles[0]);
  }
  __device__ const Tile& arrived() const {
    wait(shared_address(&control.full), phase);
    return control.tiles[phase];
  }
  __device__ unsigned char* rows(int tensor) const {
    return memory + tensor * kTileBytes;
  }
  __device__ uint32_t at(int tensor) const {
    return shared_address(rows(tensor));
  }
  /// No warp reads any tensor but the first any more.
  __device__ void release_others() {
    if (threadIdx.x % kGroup == 0 && control.walk.left > 0) ask(phase ^ 1);
    __syncwarp();
  }
  /// Nor does this warp read the first. `more`: there is a next tile.
  __device__ void release(bool more) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared_address(&control.empty));
    if (threadIdx.x % kGroup == 0 && more) {
      wait(shared_address(&control.empty), phase);
      copy(kOwn, control.tiles[phase ^ 1]);
    }
    __syncwarp();
    phase ^= 1;
  }

  unsigned char* memory;
  Control& control;
  const FusedTiles& work;
  const CUtensorMap* maps[kTensors];
  Factor<float> factor;  ///< a number for each row, fetched to L2 ahead
  uint32_t phase = 0;

 private:
  __device__ void ask(int which) {
    const Tile tile = control.walk.next(work);
    control.tiles[which] = tile;
    fetch_factors(factor, tile);
    arrive_expecting(shared_address(&control.full), kBytes);
#pragma unroll
    for (int i = 1; i < kTensors; ++i) copy(i, tile);
  }
  __device__ void copy(int tensor, const Tile& tile) {
    copy_rows(at(tensor), maps[tensor], tile.row, tile.head, tile.batch,
              shared_address(&control.full));
  }
};

struct Layout {
  static constexpr int kState = kGroups * BackwardStages::kBytes;
  static constexpr int kOut = kState + kGroups * kTileBytes;   // keys' dv
  static constexpr int kSlopes = kOut + kGroups * kTileBytes;  // du
  static constexpr int kLast = kSlopes + kGroups * kNarrowBytes;
  static constexpr int kProjection = kLast + kGroups * kNarrowBytes;
  static constexpr int kBack = kProjection + 2048;
  static constexpr int kZ = kBack + 2048;
  static constexpr int kD = kZ + kGroups * kFeatures * 4;
  static constexpr int kPieceControl = kD + kGroups * kTokens * 4;
  static constexpr int kControl =
      kPieceControl + aligned(static_cast<int>(sizeof(Pieces::Control)));
  static constexpr int kTable =
      kControl +
      aligned(kGroups * static_cast<int>(sizeof(BackwardStages::Control)));

  static int rows(const TableShape& shape) {
    return Pieces::rows_in(shape, kSharedBytes - kTable);
  }
  static size_t memory(const TableShape& shape) {
    return kTable + Pieces::bytes(shape, rows(shape));
  }
};

/// A lower triangle of ones as an operand whose rows run along the depth. By
/// the whole block.
__device__ __forceinline__ void write_triangle(unsigned char* to) {
  for (int i = threadIdx.x; i < kTokens * kTokens; i += blockDim.x) {
    const int row = i / kTokens, column = i % kTokens;
    *reinterpret_cast<__nv_bfloat16*>(to + operand_at(row, column)) =
        __float2bfloat16_rn(column <= row ? 1.f : 0.f);
  }
}

/// Features in their places, where `count` has their rows.
__device__ __forceinline__ void store_places(const Rows& to, const Tile& tile,
                                             const uint32_t (&phi)[4][4]) {
  const TwoRows two(tile);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!two.valid[r]) break;
    auto* at =
        reinterpret_cast<uint32_t*>(
            static_cast<__nv_bfloat16*>(to.data) +
            row_at(to, tile.batch, tile.head, tile.row + two.row + 8 * r)) +
        threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) at[4 * j] = phi[2 * r + j / 4][j % 4];
  }
}

template <bool kKeys, bool kGradWeight>
__global__ void __launch_bounds__(kGroups* kGroup, 1)
    backward_kernel(const __grid_constant__ CausalBackward p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int t = lane % 4;
  const int run = group * gridDim.x + blockIdx.x;
  BackwardStages stages{memory + group * BackwardStages::kBytes,
                        reinterpret_cast<BackwardStages::Control*>(
                            memory + Layout::kControl)[group],
                        p.tiles,
                        {&p.x, &p.features, &p.value, &p.y},
                        {kKeys ? p.d : p.denominator, p.row_batch, p.row_head}};
  auto& control =
      *reinterpret_cast<Pieces::Control*>(memory + Layout::kPieceControl);
  if (threadIdx.x % kGroup == 0) stages.init();
  if (threadIdx.x == 0) Pieces::init(control);
  // All but the last launch are done: keys' pieces need not wait.
  if (!kKeys) wait_for_previous_launch();
  const ProjectionRows projection(p.map, 0);
  float* part = p.sums + blockIdx.x * feature_sums_size(p.map);
  Pieces pieces(p.map, PieceImage(p.pieces), p.rows, control,
                memory + Layout::kTable, part);
  if (kKeys) wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) {
    fence_async_global();
    stages.control.walk.start(p.tiles, run, kKeys);
    stages.begin();
  }
  unsigned char* state = memory + Layout::kState + group * kTileBytes;
  unsigned char* out = memory + Layout::kOut + group * kTileBytes;
  unsigned char* slopes = memory + Layout::kSlopes + group * kNarrowBytes;
  unsigned char* last = memory + Layout::kLast + group * kNarrowBytes;
  auto* z = reinterpret_cast<float*>(memory + Layout::kZ) + group * kFeatures;
  auto* d_rows =
      reinterpret_cast<float*>(memory + Layout::kD) + group * kTokens;
  if (group == 0) {
    projection.write(true, memory + Layout::kProjection);
    projection.write(false, memory + Layout::kBack);
  }
  if (!kKeys) write_triangle(memory + Layout::kOut);
  if (threadIdx.x % kGroup < kTokens) {  // queries: a column of ones
    reinterpret_cast<uint4*>(last)[threadIdx.x % kGroup] =
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

  Running running;
  float grad_w[1][1][4] = {}, grad_b[1][2] = {};
  const int count = uniform(stages.control.count);
  const int rounds = run_length(p.tiles, all_tiles(p.tiles));
  for (int round = 0; round < count; ++round) {
    const Tile& tile = stages.arrived();
    const TwoRows two(tile);
    float row[2], guard[2], d[2];  // row: weights, or denominators' inverses
    if constexpr (kKeys) {
      two.read(p.weight.data, p.weight.batch, p.weight.head, tile, 1.f, row);
      two.read(p.d, p.row_batch, p.row_head, tile, 0.f, d);
    } else {
      two.read(p.denominator, p.row_batch, p.row_head, tile, 1.f, row);
    }
    if (tile.first) {
      running.load(
          tile,
          p.parts + static_cast<int64_t>(run + (kKeys ? 1 : -1)) * kFusedPart,
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
    float projected[8], scores[32];
    products_begin();
    project(DeepOperand(stages.at(kOwn)), w, projected);
    if constexpr (!kKeys) {
      multiply_deep(scores, stages.at(kUpstream), stages.at(kValue));
      products_commit();
    }
    if constexpr (kKeys) {
      write_last(last, two, d);
      if (t == 0) {
        d_rows[two.row] = d[0];
        d_rows[two.row + 8] = d[1];
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        guard[r] = fabsf(row[r]) > p.eps ? -1.f : 0.f;
      }
      invert(two, tile, p.live, p.eps, row);
    }
    fence_async();
    group_barrier(group);  // the state is written
    const WideOperand wide_other(stages.at(kOther));
    uint32_t a[16];
    float grad[1][32];  // of features
    float(&c)[32] = grad[0];
    Found<1> found;
    const uint32_t(&phi)[4][4] = found.phi[0];
    if constexpr (kKeys) {
      products_begin();
      running.add(stages.at(kOther), stages.at(kUpstream), narrow_last);
      products_commit();
      products_wait<1>();
      finish_projection(projected, bias, found.u[0]);
      found.look_up(pieces.table, 0, {1.f, 1.f});
      products_begin();
      multiply_features<false>(scores, phi, DeepOperand(stages.at(kOther)));
      products_commit();
      multiply_features<true>(c, phi, wide_state);
      products_commit();
      products_wait<1>();
      keep_triangle<true>(scores, a);
      products_begin();
      multiply_wide(c, a, WideOperand(stages.at(kUpstream)), true);
      products_commit();
      products_wait<0>();
      products_begin();
      multiply_deep(scores, stages.at(kValue), stages.at(kUpstream));
      products_commit();
      store_product(out, c, row[0], row[1]);
      copy_out(out, p.grad_value, tile);
      products_wait<0>();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 x = reinterpret_cast<const float2*>(d_rows)[4 * j + t];
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
      products_wait<1>();
      finish_projection(projected, bias, found.u[0]);
      found.look_up(pieces.table, 0, row);
      products_wait<0>();
      keep_triangle<false>(scores, a);
      float keys[32];  // the normaliser's share of this tile
      products_begin();
      multiply_deep(c, stages.at(kUpstream), shared_address(state));
      multiply_wide(c, a, wide_other, true);
      products_commit();
      running.add(stages.at(kOther), stages.at(kValue), narrow_last);
      products_commit();
      products_wait<1>();
      products_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        multiply<false, true>(keys, triangle.step(k), wide_other.step(k),
                              k > 0);
      }
      products_commit();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        d[r] = guard[r] * row_product(found.phi, grad, r);
      }
      if (t == 0) {
        float* to = p.d + tile.batch * p.row_batch + tile.head * p.row_head +
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
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 x = reinterpret_cast<const float2*>(z)[8 * t + j];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* to = &c[4 * j + 2 * r];
        to[0] = kKeys ? to[0] + x.x : fmaf(d[r], x.x, to[0]);
        to[1] = kKeys ? to[1] + x.y : fmaf(d[r], x.y, to[1]);
      }
    }
    if constexpr (kGradWeight) {
      float* to = p.grad_weight + tile.batch * p.row_batch +
                  tile.head * p.row_head + tile.row + two.row;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = row_product(found.phi, grad, r);
        if (t == 0 && two.valid[r]) to[8 * r] = x;
      }
    }
    float du[1][4];
    pieces.to_slopes<false>(round, found, grad, row, du);
    const uint32_t steps[2] = {pack(du[0][0], du[0][1]),
                               pack(du[0][2], du[0][3])};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      grad_b[0][0] += du[0][2 * r];
      grad_b[0][1] += du[0][2 * r + 1];
      *reinterpret_cast<uint32_t*>(slopes + (two.row + 8 * r) * 16 + 4 * t) =
          steps[r];
    }
    fence_async();
    group_barrier(group);  // the state is read, and so are the others' rows
    stages.release_others();
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<true, true>(grad_w[0][0], WideOperand(stages.at(kOwn)).step(k),
                           narrow_slopes.step(k), 1);
    }
    products_commit();
    running.write_operand(state);
    running.write_last(z);
    if constexpr (!kKeys) store_places(p.features_out, tile, phi);
    pieces.agree(round);
    products_wait<0>();
    const Tile own = tile;
    stages.release(round + 1 < count);
    pieces.add(found, grad, row);
    float dx[32];  // not before: c needs the registers
    products_begin();
    multiply<true>(dx, steps[0], steps[1], steps[0], steps[1], back.step(0), 0);
    products_commit();
    products_wait<0>();
    TileRows(p.grad_x, own).store(dx, 1.f, 1.f);
    if (kKeys && own.end && p.results != nullptr) {
      running.write_state(own.state, p.results);
    }
  }
  pieces.finish(count, rounds);
  write_weights<kWidth, 1, kGroups>(
      grad_w, grad_b, memory + Layout::kState,
      part + (p.map.shape.knots + 1) * 2 * kChannels);
}

}  // namespace
}  // namespace fused

bool causal_fits(const TableShape& shape) {
  const auto most = static_cast<size_t>(block_memory());
  return is_hopper() && shape.knots < 65536 &&
         fused::causal_forward_memory(shape) <= most &&
         fused::causal_runs_memory(shape) <= most &&
         fused::Layout::rows(shape) >= fused_least_pieces(shape) &&
         fused::Layout::memory(shape) <= most;
}

int causal_backward_pieces(const TableShape& shape) {
  return fused::Layout::rows(shape);
}

int64_t causal_backward_workers() { return multiprocessors() * fused::kGroups; }

void causal_backward(bool keys, const CausalBackward& p, cudaStream_t stream) {
  launch_after(
      !keys ? fused::backward_kernel<false, false>
            : (p.grad_weight == nullptr ? fused::backward_kernel<true, false>
                                        : fused::backward_kernel<true, true>),
      static_cast<unsigned>(fused_blocks()), fused::kGroups * fused::kGroup,
      fused::Layout::memory(p.map.shape), stream, "causal_backward", p);
}

}  // namespace luna::cuda
