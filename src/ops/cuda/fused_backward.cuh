#pragma once

// The fused backward of one side: queries, or keys and values.
//
// A tile: u and y S^T, phi by look-up, du in the thread that made u. Then, all
// at once, dx = du W, dW += x^T du and (queries) dS += phi^T y.
//
// Sums of g and g u per segment and channel: 32-bit integers in shared memory,
// so that the order of additions does not matter. Their unit follows the
// largest number the block has met: its warpgroups take their tiles in rounds,
// and each waits for the others' largest before it adds its own. 2^14 units
// are at least that number, and 2^16 numbers are added before the sums are
// put away, so nothing can overflow. g u is added up only in segments that are
// not narrow.

#include "ops/cuda/fused.cuh"

namespace luna::cuda::fused {

constexpr int kUnitBits = 14;
/// A segment is narrow where it is so many times less wide than the numbers
/// are large: all its u count as its middle, and sums of g are enough.
constexpr float kNarrow = 32.f;
constexpr int kNoScale = 0x7f7fffff;    // bits of the largest float
constexpr int kSumRow = kChannels + 1;  // odd, against bank conflicts
/// What the kernels of a width have in shared memory. Warpgroups share a
/// projection, or each has its own head's, which leaves less room.
template <int kNumbers, bool kPerHead>
struct Form {
  static constexpr int kGroups = kNumbers == 64  ? (kPerHead ? 2 : 3)
                                 : kNumbers < 64 ? 3
                                                 : 2;
  static constexpr int kWarps = kGroups * 4;
  static constexpr int kRounds = (1 << 16) / (kGroups * kTokens * kProjections);
  using Rows = Block<kNumbers>;
  using BackwardStages = Stages<2, kNumbers <= 64 ? 2 : 1, kNumbers>;
  using ProjectionRows = ProjectionRowsOf<kNumbers>;
  using Control = typename BackwardStages::Control;
  static constexpr int kProjectionBytes =
      (kPerHead ? kGroups : 1) * ProjectionRows::Rows::kBytes;

  /// phi (queries), or the state in another order (keys).
  static constexpr int kExtraBytes =
      Rows::kBytes > kTileBytes ? Rows::kBytes : kTileBytes;
  static constexpr int kExtra = kGroups * BackwardStages::kBytes;
  static constexpr int kState = kExtra + kGroups * kExtraBytes;
  static constexpr int kSlopes = kState + kGroups * Rows::kBytes;  // du
  static constexpr int kLast = kSlopes + kGroups * kNarrowBytes;
  static constexpr int kProjection = kLast + kGroups * kNarrowBytes;
  static constexpr int kBack = kProjection + kProjectionBytes;
  static constexpr int kZ = kBack + kProjectionBytes;
  static constexpr int kTops = kZ + kGroups * kFeatures * 4;
  static constexpr int kScale = kTops + 24;
  static constexpr int kBarrier = kTops + 32;
  static constexpr int kControl = kBarrier + 16;
  static constexpr int kTable =
      kControl + (kGroups * static_cast<int>(sizeof(Control)) + 15) / 16 * 16;

  __host__ __device__ explicit Form(const TableShape& shape)
      : segments(static_cast<int>(shape.knots) + 1),
        sums(kTable + (static_cast<int>(Table::bytes(shape)) + 15) / 16 * 16),
        wide(sums + 2 * segments * kSumRow * 4),
        total(wide + segments) {}
  int segments, sums, wide, total;
};

/// A power of two, by its exponent: kNone is 0, kInfinite is no number.
constexpr int kNone = 40, kInfinite = 255;

/// Of the least power of two >= x (bits of a float >= 0).
__device__ __forceinline__ int exponent_above(int bits) {
  const int e = (bits + 0x7fffff) >> 23;
  return e > kNone ? e : kNone;
}
/// What a number is multiplied by to be in units, kUnitBits below a power.
__device__ __forceinline__ float to_units(int exponent) {
  return exponent == kInfinite
             ? 0.f
             : __int_as_float((2 * 127 + kUnitBits - exponent) << 23);
}
__device__ __forceinline__ float of_unit(int exponent) {
  return __int_as_float((exponent - kUnitBits) << 23);
}
/// The 32 bits at `at` += x y, rounded, |x y| < 2^21.
__device__ __forceinline__ void add_rounded(uint32_t at, float x, float y) {
  constexpr float kMagic = 12582912.f;  // 1.5 * 2^23: units are its last bit
  const int rounded = __float_as_int(fmaf(x, y, kMagic)) - 0x4b400000;
  asm volatile("red.shared::cta.add.s32 [%0], %1;\n" ::"r"(at), "r"(rounded)
               : "memory");
}

/// phi . c of row r, in all threads of its quad.
__device__ __forceinline__ float row_product(const uint32_t (&phi)[4][4],
                                             const float (&c)[32], int r) {
  float x = 0.f;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t pair = phi[2 * r + j / 4][j % 4];
    x = fmaf(low_of(pair), c[4 * j + 2 * r], x);
    x = fmaf(high_of(pair), c[4 * j + 2 * r + 1], x);
  }
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// dW [8, width] and db [4 warps, 8] of a warpgroup, to `to` or added to it;
/// then they are 0.
template <int kNumbers>
__device__ __forceinline__ void add_weights(
    float (&grad_w)[Block<kNumbers>::kPieces][4], float (&grad_b)[2], float* to,
    bool add) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroup / 32;
  const int g = lane / 4, t = lane % 4;
  const auto put = [&](int at, float x) { to[at] = add ? to[at] + x : x; };
#pragma unroll
  for (int piece = 0; piece < Block<kNumbers>::kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 64 * piece + 16 * warp + g + i / 2 * 8;
      if (column < kNumbers) {
        put((2 * t + i % 2) * kNumbers + column, grad_w[piece][i]);
      }
      grad_w[piece][i] = 0.f;
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    float x = grad_b[m];
    for (int i = 4; i < 32; i *= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    if (g == 0) {
      put(kProjections * kNumbers + warp * kProjections + 2 * t + m, x);
    }
    grad_b[m] = 0.f;
  }
}

template <int kNumbers, bool kPerHead, bool kKeys, bool kGradWeight>
__global__ void __launch_bounds__(Form<kNumbers, kPerHead>::kGroups* kGroup, 1)
    backward_kernel(const __grid_constant__ FusedBackward p) {
  using F = Form<kNumbers, kPerHead>;
  using Rows = typename F::Rows;
  using BackwardStages = typename F::BackwardStages;
  using ProjectionRows = typename F::ProjectionRows;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = uniform(threadIdx.x / kGroup), lane = threadIdx.x % 32;
  const int warp = threadIdx.x % kGroup / 32, g = lane / 4, t = lane % 4;
  const int worker = group * gridDim.x + blockIdx.x;
  const F layout(p.map.shape);
  unsigned char* own = memory + group * BackwardStages::kBytes;
  BackwardStages stages(
      own, reinterpret_cast<typename F::Control*>(memory + F::kControl)[group],
      p.tiles, &p.x, &p.y, p.row);
  const uint32_t round_barrier = shared_address(memory + F::kBarrier);
  if (threadIdx.x % kGroup == 0) stages.init();
  if (threadIdx.x == 0) {
    barrier_init(round_barrier, F::kWarps);
    barrier_init_fence();
  }
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  const ProjectionRows projection_rows(p.map, 0);
  Table table(p.map, memory + F::kTable);
  table.build<F::kGroups * kGroup>(p.map);
  // Features by tokens (queries), or the state for dv (keys).
  unsigned char* extra = memory + F::kExtra + group * F::kExtraBytes;
  unsigned char* state = memory + F::kState + group * Rows::kBytes;
  unsigned char* slopes = memory + F::kSlopes + group * kNarrowBytes;
  unsigned char* last = memory + F::kLast + group * kNarrowBytes;
  const int own_projection =
      kPerHead ? group * ProjectionRows::Rows::kBytes : 0;
  unsigned char* projection = memory + F::kProjection + own_projection;
  unsigned char* projection_back = memory + F::kBack + own_projection;
  auto* z = reinterpret_cast<float*>(memory + F::kZ) + group * kFeatures;
  auto* tops = reinterpret_cast<int*>(memory + F::kTops);
  auto* sums = reinterpret_cast<int*>(memory + layout.sums);
  unsigned char* wide = memory + layout.wide;
  auto* least_scale = reinterpret_cast<int*>(memory + F::kScale);
  if (group == 0) {
    projection_rows.write(true, projection);
    projection_rows.write(false, projection_back);
  }
  for (int i = threadIdx.x; i < 2 * layout.segments * kSumRow;
       i += blockDim.x) {
    sums[i] = 0;
  }
  for (int i = threadIdx.x; i < layout.segments; i += blockDim.x) wide[i] = 1;
  if (threadIdx.x < 6) tops[threadIdx.x] = 0;
  if (threadIdx.x == 0) *least_scale = kNoScale;
  fence_async();
  __syncthreads();
  const typename ProjectionRows::Rows::Deep w(shared_address(projection));
  const typename ProjectionRows::Rows::Wide back(
      shared_address(projection_back));
  const typename Rows::Deep deep_state(shared_address(state));
  const typename Rows::Wide wide_state(shared_address(extra));
  const WideOperand features(shared_address(extra));
  const NarrowOperand narrow_slopes(shared_address(slopes)),
      narrow_last(shared_address(last));
  const uint32_t sums_at = shared_address(sums);
  const uint32_t sums_u_at = sums_at + layout.segments * kSumRow * 4;
  // A feature that is at most this far from 0 has no gradient.
  const float cut = p.map.nonneg ? 0.f : -1.f;
  float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  const int64_t size = static_cast<int64_t>(layout.segments) * 2 * kChannels +
                       kProjections * (kNumbers + 1);
  float* part = p.sums + blockIdx.x * size;

  int unit[2] = {kNone, kNone};  // exponents
  int rounds_added = 0;
  bool put_away = false;
  const auto announce = [&](int round, float top, float top_u) {
    const int most = __reduce_max_sync(0xffffffffu, __float_as_int(top));
    const int most_u = __reduce_max_sync(0xffffffffu, __float_as_int(top_u));
    if (lane == 0) {
      atomicMax(&tops[round % 3 * 2], most);
      atomicMax(&tops[round % 3 * 2 + 1], most_u);
      arrive(round_barrier);
    }
    __syncwarp();
  };
  // Older sums move to a larger unit.
  const auto agree = [&](int round) {
    wait(round_barrier, round & 1);
    const int seen[2] = {exponent_above(tops[round % 3 * 2]),
                         exponent_above(tops[round % 3 * 2 + 1])};
    if (threadIdx.x < 2) tops[(round + 2) % 3 * 2 + threadIdx.x] = 0;
    if (round == 0) {
      const float scale =
          *least_scale == kNoScale ? 0.f : __int_as_float(*least_scale);
      for (int i = threadIdx.x; i < layout.segments; i += blockDim.x) {
        const float width =
            i == 0 ? INFINITY : table.entry[i].x - table.entry[i - 1].x;
        wide[i] = !(kNarrow * kNarrow * width * width <= scale);
      }
      __syncthreads();
    }
    if (seen[0] <= unit[0] && seen[1] <= unit[1]) return;
    for (int i = 0; i < 2; ++i) {
      const int shift = min(max(seen[i] - unit[i], 0), 31);
      unit[i] = max(unit[i], seen[i]);
      if (shift == 0) continue;
      int* from = sums + i * layout.segments * kSumRow;
      for (int j = threadIdx.x; j < layout.segments * kSumRow;
           j += blockDim.x) {
        from[j] = (from[j] + (1 << (shift - 1))) >> shift;
      }
    }
    __syncthreads();
  };
  // To the block's own part, in float32, and back to 0.
  const auto put = [&] {
    __syncthreads();
    const float scale = of_unit(unit[0]) * p.map.factor;
    const float scale_u = of_unit(unit[1]) * p.map.factor;
    const bool finite = unit[0] < kInfinite && unit[1] < kInfinite;
    for (int i = threadIdx.x; i < layout.segments * kChannels;
         i += blockDim.x) {
      const int segment = i / kChannels, column = i % kChannels;
      int* at = sums + segment * kSumRow + column;
      int* at_u = at + layout.segments * kSumRow;
      float x = static_cast<float>(*at) * scale;
      float x_u = static_cast<float>(*at_u) * scale_u;
      *at = 0;
      *at_u = 0;
      if (!wide[segment]) {
        x_u = x * (.5f * (table.entry[segment - 1].x + table.entry[segment].x));
      }
      if (!finite) x = x_u = NAN;
      float* to = part + segment * 2 * kChannels + column;
      to[0] = put_away ? to[0] + x : x;
      to[kChannels] = put_away ? to[kChannels] + x_u : x_u;
    }
    put_away = true;
    rounds_added = 0;
    __syncthreads();
  };

  SumsOf<kNumbers> state_sums;
  // Columns of x by projections: thread (g, t) of warp w has projections 2 t
  // and 2 t + 1 of columns 64 piece + 16 w + g and 8 more.
  float grad_w[Rows::kPieces][4] = {}, grad_b[2] = {};
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
                                           kFeatures * (kNumbers + 1);
        write_state<kNumbers>(from, state, kKeys ? extra : nullptr);
        const int feature = threadIdx.x % kGroup;
        if (feature < kFeatures) {
          z[feature] = from[feature * (kNumbers + 1) + kNumbers];
        }
        if constexpr (kPerHead) {
          const ProjectionRows head_rows(p.map, tile.head);
          head_rows.write(true, projection);
          head_rows.write(false, projection_back);
          bias[0] = p.map.bias[tile.head * kProjections + 2 * t];
          bias[1] = p.map.bias[tile.head * kProjections + 2 * t + 1];
        }
      }
      if (clear) {
        clear_rows<kNumbers>(rows, tile.count);
        clear_rows<kNumbers>(rows + Rows::kBytes, tile.count);
      }
      fence_async();
      group_barrier(group);
    }
    float projected[8], c[32], u[4];
    products_begin();
    project_rows<kNumbers>(typename Rows::Deep(stages.x_rows()), w, projected);
    const typename Rows::Deep deep_y(stages.y_rows());
#pragma unroll
    for (int k = 0; k < kNumbers / 16; ++k) {
      multiply<false, false>(c, deep_y.step(k), deep_state.step(k), k > 0);
    }
    products_commit();
    const int row = 16 * warp + g;
    const bool valid[2] = {row < tile.count, row + 8 < tile.count};
    float factor[2] = {valid[0] ? 1.f : 0.f, valid[1] ? 1.f : 0.f};
    float guard[2] = {1.f, 1.f};
    if (p.row.data != nullptr) {
      const float* from = p.row.data + tile.batch * p.row.batch +
                          tile.head * p.row.head + tile.row + row;
      if (valid[0]) factor[0] = from[0];
      if (valid[1]) factor[1] = from[8];
    }
    if (!kKeys) {  // denominators
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        guard[r] = fabsf(factor[r]) > p.eps ? -1.f : 0.f;
        factor[r] = valid[r] ? 1.f / guarded(factor[r], p.eps) : 0.f;
      }
    }
    products_wait<1>();
    finish_projection(projected, bias, u);
    int segment[4];
    uint32_t phi[4][4];
    uint4 slope[4];
    float slope_unit[4];
    const float weight[2] = {kKeys ? 1.f : factor[0], kKeys ? 1.f : factor[1]};
    table.look_up(u, weight, segment, phi, slope, slope_unit);
    if (round == 0) {  // the least of the warps' mean squares
      float square = u[0] * u[0] + u[1] * u[1];
      square = valid[1] ? square + u[2] * u[2] + u[3] * u[3] : 2.f * square;
      square = warp_sum(valid[0] ? square : INFINITY);
      if (lane == 0) atomicMin(least_scale, __float_as_int(square / 128.f));
    } else {
      stages.wait_for_others();
    }
    float dy[Rows::kPieces][Rows::kPieceNumbers / 2];
    if constexpr (kKeys) {
      products_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int m = k / 2, j = 2 * (k % 2);
#pragma unroll
        for (int i = 0; i < Rows::kPieces; ++i) {
          multiply<true>(dy[i], phi[m][j], phi[2 + m][j], phi[m][j + 1],
                         phi[2 + m][j + 1], wide_state.step(k, i), k > 0);
        }
      }
      products_commit();
      products_wait<1>();
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        *reinterpret_cast<uint4*>(extra + Block<kFeatures>::chunk_at(
                                              row + n / 2 * 8, 2 * t + n % 2)) =
            make_uint4(phi[n][0], phi[n][1], phi[n][2], phi[n][3]);
      }
      products_wait<0>();
    }
    // g without its row's factor.
    float d[2] = {1.f, 1.f};  // what the normaliser counts
    if constexpr (!kKeys) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        d[r] = guard[r] * row_product(phi, c, r);
        if (t == 0) {
          const float high = high_part(d[r]);
          *reinterpret_cast<uint4*>(last + (row + 8 * r) * 16) =
              make_uint4(pack(high, d[r] - high), 0, 0, 0);
        }
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
      float* to = p.grad_weight + tile.batch * p.grad_weight_batch +
                  tile.head * p.grad_weight_head + tile.row + row;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = row_product(phi, c, r);
        if (t == 0 && valid[r]) to[8 * r] = x;
      }
    }
    float du[4], top = 0.f, top_u = 0.f;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t pairs[4] = {slope[n].x, slope[n].y, slope[n].z,
                                 slope[n].w};
      float total = 0.f, most = 0.f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* x = &c[4 * (4 * (n % 2) + i) + 2 * (n / 2)];
        const float2 s = halves(pairs[i]);
        x[0] = !(fabsf(low_of(phi[n][i])) <= cut) ? x[0] : 0.f;
        x[1] = !(fabsf(high_of(phi[n][i])) <= cut) ? x[1] : 0.f;
        total = fmaf(x[1], s.y, fmaf(x[0], s.x, total));
        most = fmaxf(most, fmaxf(fabsf(x[0]), fabsf(x[1])));
      }
      du[n] = total * (slope_unit[n] * factor[n / 2]);
      most *= fabsf(factor[n / 2]);
      // fmaxf drops NaN: keep what is not a number as infinity.
      if (!(fabsf(du[n]) <= 3e38f)) most = INFINITY;
      top = fmaxf(top, most);
      top_u = fmaxf(top_u, most * fabsf(u[n]));
      grad_b[n % 2] += du[n];
    }
    announce(round, top, top_u);
    const uint32_t steps[2] = {pack(du[0], du[1]), pack(du[2], du[3])};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<uint32_t*>(slopes + (row + 8 * r) * 16 + 4 * t) =
          steps[r];
    }
    fence_async();
    if constexpr (kKeys) {  // dv
      const TileRows to(p.grad_y, tile);
      products_wait<0>();
#pragma unroll
      for (int i = 0; i < Rows::kPieces; ++i) {
        to.store(dy[i], factor[0], factor[1], i);
      }
    }
    group_barrier(group);
    products_begin();
    const typename Rows::Wide wide_x(stages.x_rows()), wide_y(stages.y_rows());
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < Rows::kPieces; ++i) {
        // Of rows of 32 numbers: y's follow, and what they give is not read.
        multiply<true, true>(grad_w[i], wide_x.step(k, i),
                             narrow_slopes.step(k), 1);
        if constexpr (!kKeys) {
          multiply<true, true>(state_sums.piece(i), features.step(k),
                               wide_y.step(k, i), 1);
        }
      }
      if constexpr (!kKeys) {
        multiply<true, true>(state_sums.z, features.step(k),
                             narrow_last.step(k), 1);
      }
    }
    products_commit();
    agree(round);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float x = factor[n / 2] * to_units(unit[0]);
      const float x_u = factor[n / 2] * u[n] * to_units(unit[1]);
      const uint32_t at = segment[n] * (kSumRow * 4);
      const auto number = [&](int i) {
        return c[4 * (4 * (n % 2) + i / 2) + 2 * (n / 2) + i % 2];
      };
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        add_rounded(sums_at + at + 4 * i, x, number(i));
      }
      if (wide[segment[n]]) {
#pragma unroll
        for (int i = 0; i < kChannels; ++i) {
          add_rounded(sums_u_at + at + 4 * i, x_u, number(i));
        }
      }
    }
    __syncwarp();
    // Not before: c needs the registers.
    float dx[Rows::kPieces][Rows::kPieceNumbers / 2];
    products_begin();
#pragma unroll
    for (int i = 0; i < Rows::kPieces; ++i) {
      multiply<true>(dx[i], steps[0], steps[1], steps[0], steps[1],
                     back.step(0, i), 0);
    }
    products_commit();
    products_wait<0>();
    stages.release();
    stages.advance();
    const TileRows grad_x(p.grad_x, tile);
#pragma unroll
    for (int i = 0; i < Rows::kPieces; ++i) grad_x.store(dx[i], 1.f, 1.f, i);
    if (!kKeys && tile.last) {
      state_sums.write(tile, p.results, p.parts, worker);
    }
    if (kPerHead && tile.last) {
      add_weights<kNumbers>(
          grad_w, grad_b,
          p.head_sums +
              (static_cast<int64_t>(worker) * p.tiles.heads + tile.head) *
                  fused_head_sums(kNumbers),
          true);
    }
    if (++rounds_added == F::kRounds) put();
  }
  for (int round = count; round < rounds; ++round) {  // the others' tiles
    announce(round, 0.f, 0.f);
    agree(round);
    if (++rounds_added == F::kRounds) put();
  }
  if (rounds_added > 0 || !put_away) put();

  if constexpr (kPerHead) return;
  // dW and db of all warpgroups, where stages were.
  __syncthreads();
  auto* all = reinterpret_cast<float*>(memory);
  add_weights<kNumbers>(grad_w, grad_b, all + group * fused_head_sums(kNumbers),
                        false);
  __syncthreads();
  float* weights = part + static_cast<int64_t>(layout.segments) * 2 * kChannels;
  constexpr int kWeights = kProjections * kNumbers;
  for (int i = threadIdx.x; i < kWeights + kProjections; i += blockDim.x) {
    const int copies = i < kWeights ? 1 : 4;  // a warp's each
    float x = 0.f;
    for (int j = 0; j < F::kGroups * copies; ++j) {
      x += all[j / copies * fused_head_sums(kNumbers) + i +
               j % copies * kProjections];
    }
    weights[i] = x;
  }
}

template <int kNumbers, bool kPerHead>
void launch_backward(bool keys, const FusedBackward& p, cudaStream_t stream) {
  using F = Form<kNumbers, kPerHead>;
  const auto kernel =
      !keys ? backward_kernel<kNumbers, kPerHead, false, false>
            : (p.grad_weight == nullptr
                   ? backward_kernel<kNumbers, kPerHead, true, false>
                   : backward_kernel<kNumbers, kPerHead, true, true>);
  launch_after(kernel, static_cast<unsigned>(fused_blocks()),
               F::kGroups * kGroup, static_cast<size_t>(F(p.map.shape).total),
               stream, "fused_backward", p);
}
/// One projection for each head.
extern template void launch_backward<32, true>(bool, const FusedBackward&,
                                               cudaStream_t);
extern template void launch_backward<64, true>(bool, const FusedBackward&,
                                               cudaStream_t);
extern template void launch_backward<128, true>(bool, const FusedBackward&,
                                                cudaStream_t);

}  // namespace luna::cuda::fused
