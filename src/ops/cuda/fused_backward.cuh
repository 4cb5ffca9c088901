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

#include "ops/cuda/fused_backward_form.cuh"

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
  unsigned char* extra = memory + F::kExtra + group * kHalves * F::kExtraBytes;
  unsigned char* state = memory + F::kState + group * kHalves * Rows::kBytes;
  unsigned char* slopes = memory + F::kSlopes + group * kHalves * kNarrowBytes;
  unsigned char* last = memory + F::kLast + group * kNarrowBytes;
  const int own_projection =
      kPerHead ? group * ProjectionRows::Rows::kBytes : 0;
  unsigned char* projection = memory + F::kProjection + own_projection;
  unsigned char* projection_back = memory + F::kBack + own_projection;
  auto* z =
      reinterpret_cast<float*>(memory + F::kZ) + group * kHalves * kFeatures;
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
  const NarrowOperand narrow_last(shared_address(last));
  const uint32_t sums_at = shared_address(sums);
  const uint32_t sums_u_at = sums_at + layout.segments * kSumRow * 4;
  // A feature that was cut to 0 has no gradient.
  const uint32_t uncut = p.map.nonneg ? 0u : 0x00010001u;
  float bias[kHalves][2];
  read_bias(p.map, 0, bias);
  const int64_t size = static_cast<int64_t>(layout.segments) * 2 * kChannels +
                       kHalves * kProjections * (kNumbers + 1);
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

  SumsOf<kNumbers, kHalves> state_sums[kHalves];
  // Columns of x by projections: thread (g, t) of warp w has projections 2 t
  // and 2 t + 1 of columns 64 piece + 16 w + g and 8 more.
  float grad_w[kHalves][Rows::kPieces][4] = {}, grad_b[kHalves][2] = {};
  const int row = 16 * warp + g;
  float factors[2];  // of a tile's rows; 0 beyond its end
  const auto read_factors = [&](const Tile& tile) {
    const float* from = p.row.data == nullptr
                            ? nullptr
                            : p.row.data + tile.batch * p.row.batch +
                                  tile.head * p.row.head + tile.row + row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factors[r] = row + 8 * r >= tile.count ? 0.f
                   : from == nullptr         ? 1.f
                                             : from[8 * r];
    }
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
              state + half * Rows::kBytes,
              kKeys ? extra + half * F::kExtraBytes : nullptr);
        }
        const int feature = threadIdx.x % kGroup;
        if (feature < kHalves * kFeatures) {
          z[feature] = from[feature * (kNumbers + 1) + kNumbers];
        }
        if constexpr (kPerHead) {
          const ProjectionRows head_rows(p.map, tile.head);
          head_rows.write(true, projection);
          head_rows.write(false, projection_back);
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
    float projected[8 * kHalves], c[kHalves][32], u[kHalves][4];
    products_begin();
    project_rows<kNumbers, kHalves>(typename Rows::Deep(stages.x_rows()), w,
                                    projected);
    const typename Rows::Deep deep_y(stages.y_rows());
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const typename Rows::Deep s(shared_address(state + half * Rows::kBytes));
#pragma unroll
      for (int k = 0; k < kNumbers / 16; ++k) {
        multiply<false, false>(c[half], deep_y.step(k), s.step(k), k > 0);
      }
    }
    products_commit();
    const bool valid[2] = {row < tile.count, row + 8 < tile.count};
    if (!F::kAhead || round == 0) read_factors(tile);
    float factor[2] = {factors[0], factors[1]};
    float guard[2] = {1.f, 1.f};
    if (!kKeys) {  // denominators
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        guard[r] = fabsf(factor[r]) > p.eps ? -1.f : 0.f;
        factor[r] = valid[r] ? 1.f / guarded(factor[r], p.eps) : 0.f;
      }
    }
    products_wait<1>();
    int segment[kHalves][4];
    uint32_t phi[kHalves][4][4];
    float slope_unit[kHalves][4];
    const float weight[2] = {kKeys ? 1.f : factor[0], kKeys ? 1.f : factor[1]};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      finish_half<kHalves>(projected, half, bias[half], u[half]);
      uint4 slope[4];
      table.look_up(u[half], weight, segment[half], phi[half], slope,
                    slope_unit[half]);
    }
    if (round == 0) {  // the least of the warps' mean squares
      const auto& x = u[0];
      float square = x[0] * x[0] + x[1] * x[1];
      square = valid[1] ? square + x[2] * x[2] + x[3] * x[3] : 2.f * square;
      square = warp_sum(valid[0] ? square : INFINITY);
      if (lane == 0) atomicMin(least_scale, __float_as_int(square / 128.f));
    } else {
      stages.wait_for_others();
      if constexpr (F::kAhead) stages.refill();
    }
    float dy[Rows::kPieces][Rows::kPieceNumbers / 2];
    if constexpr (kKeys) {
      products_begin();
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const typename Rows::Wide s(
            shared_address(extra + half * F::kExtraBytes));
        const auto& f = phi[half];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int m = k / 2, j = 2 * (k % 2);
#pragma unroll
          for (int i = 0; i < Rows::kPieces; ++i) {
            multiply<true>(dy[i], f[m][j], f[2 + m][j], f[m][j + 1],
                           f[2 + m][j + 1], s.step(k, i), half + k > 0);
          }
        }
      }
      products_commit();
      products_wait<1>();
    } else {
#pragma unroll
      for (int n = 0; n < 4 * kHalves; ++n) {
        const auto& x = phi[n / 4][n % 4];
        *reinterpret_cast<uint4*>(
            extra + n / 4 * F::kExtraBytes +
            Block<kFeatures>::chunk_at(row + n % 4 / 2 * 8, 2 * t + n % 2)) =
            make_uint4(x[0], x[1], x[2], x[3]);
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
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 x =
            reinterpret_cast<const float2*>(z)[32 * half + 8 * t + j];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float* to = &c[half][4 * j + 2 * r];
          to[0] = kKeys ? to[0] + x.x : fmaf(d[r], x.x, to[0]);
          to[1] = kKeys ? to[1] + x.y : fmaf(d[r], x.y, to[1]);
        }
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
    float top = 0.f, top_u = 0.f;
    uint32_t steps[kHalves][2];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float du[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        // Read again: they would take registers all the while.
        const uint4 slope = table.slopes[segment[half][n]];
        const uint32_t pairs[4] = {slope.x, slope.y, slope.z, slope.w};
        float total = 0.f, most = 0.f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float* x = &c[half][4 * (4 * (n % 2) + i) + 2 * (n / 2)];
          const uint32_t pair = phi[half][n][i];
          const float2 s = halves(pairs[i]);
          x[0] = ((pair | uncut) & 0x7fffu) != 0 ? x[0] : 0.f;
          x[1] = ((pair | uncut) & 0x7fff0000u) != 0 ? x[1] : 0.f;
          total = fmaf(x[1], s.y, fmaf(x[0], s.x, total));
          most = fmaxf(most, fmaxf(fabsf(x[0]), fabsf(x[1])));
        }
        du[n] = total * (slope_unit[half][n] * factor[n / 2]);
        most *= fabsf(factor[n / 2]);
        // fmaxf drops NaN: keep what is not a number as infinity.
        if (!(fabsf(du[n]) <= 3e38f)) most = INFINITY;
        top = fmaxf(top, most);
        top_u = fmaxf(top_u, most * fabsf(u[half][n]));
        grad_b[half][n % 2] += du[n];
      }
      steps[half][0] = pack(du[0], du[1]);
      steps[half][1] = pack(du[2], du[3]);
    }
    // Asked for early; the first round's agreement is where they change.
    bool with_u[4 * kHalves];
#pragma unroll
    for (int i = 0; i < 4 * kHalves; ++i) {
      with_u[i] = round == 0 || wide[segment[i / 4][i % 4]] != 0;
    }
    announce(round, top, top_u);
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      *reinterpret_cast<uint32_t*>(slopes + i / 2 * kNarrowBytes +
                                   (row + i % 2 * 8) * 16 + 4 * t) =
          steps[i / 2][i % 2];
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
    if (F::kAhead && round + 1 < count) read_factors(stages.next());
    products_begin();
    const typename Rows::Wide wide_x(stages.x_rows()), wide_y(stages.y_rows());
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const NarrowOperand narrow_slopes(
          shared_address(slopes + half * kNarrowBytes));
      const WideOperand features(shared_address(extra + half * F::kExtraBytes));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int i = 0; i < Rows::kPieces; ++i) {
          // Of rows of 32 numbers: y's follow, and what they give is not read.
          multiply<true, true>(grad_w[half][i], wide_x.step(k, i),
                               narrow_slopes.step(k), 1);
          if constexpr (!kKeys) {
            multiply<true, true>(state_sums[half].piece(i), features.step(k),
                                 wide_y.step(k, i), 1);
          }
        }
        if constexpr (!kKeys) {
          multiply<true, true>(state_sums[half].z, features.step(k),
                               narrow_last.step(k), 1);
        }
      }
    }
    products_commit();
    agree(round);
#pragma unroll
    for (int m = 0; m < 4 * kHalves; ++m) {
      const int half = m / 4, n = m % 4;
      const float x = factor[n / 2] * to_units(unit[0]);
      const float x_u = factor[n / 2] * u[half][n] * to_units(unit[1]);
      const uint32_t at = segment[half][n] * (kSumRow * 4);
      const auto number = [&](int i) {
        return c[half][4 * (4 * (n % 2) + i / 2) + 2 * (n / 2) + i % 2];
      };
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        add_rounded(sums_at + at + 4 * i, x, number(i));
      }
      if (with_u[m]) {
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
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const auto& x = steps[half];
        multiply<true>(dx[i], x[0], x[1], x[0], x[1], back.step(half, i),
                       half > 0);
      }
    }
    products_commit();
    products_wait<0>();
    if constexpr (F::kAhead) {
      stages.release_only();
    } else {
      stages.release();
    }
    stages.advance();
    const TileRows grad_x(p.grad_x, tile);
#pragma unroll
    for (int i = 0; i < Rows::kPieces; ++i) grad_x.store(dx[i], 1.f, 1.f, i);
    if (!kKeys && tile.last) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        state_sums[half].write(tile, p.results, p.parts, worker, half);
      }
    }
    if (kPerHead && tile.last) {
      add_weights<kNumbers, kHalves>(
          grad_w, grad_b,
          p.head_sums +
              (static_cast<int64_t>(worker) * p.tiles.heads + tile.head) *
                  F::kHeadSums,
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
  add_weights<kNumbers, kHalves>(grad_w, grad_b, all + group * F::kHeadSums,
                                 false);
  __syncthreads();
  float* weights = part + static_cast<int64_t>(layout.segments) * 2 * kChannels;
  constexpr int kAll = kHalves * kProjections, kWeights = kAll * kNumbers;
  for (int i = threadIdx.x; i < kWeights + kAll; i += blockDim.x) {
    const int copies = i < kWeights ? 1 : 4;  // a warp's each
    float x = 0.f;
    for (int j = 0; j < F::kGroups * copies; ++j) {
      x += all[j / copies * F::kHeadSums + i + j % copies * kAll];
    }
    weights[i] = x;
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
               F::kGroups * kGroup, static_cast<size_t>(F(p.map.shape).total),
               stream, "fused_backward", p);
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
