#pragma once

// The fused backward of one side: queries, or keys and values.
//
// A tile: u and y S^T, phi by look-up, du in the thread that made u. Then, all
// at once, dx = du W, dW += x^T du and (queries) dS += phi^T y.

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
  if (group == 0) {
    projection_rows.write(true, projection);
    projection_rows.write(false, projection_back);
  }
  fence_async();
  if (kKeys) wait_for_previous_launch();
  allow_next_launch();
  __syncthreads();
  const typename ProjectionRows::Rows::Deep w(shared_address(projection));
  const typename ProjectionRows::Rows::Wide back(
      shared_address(projection_back));
  const NarrowOperand narrow_last(shared_address(last));
  float bias[kHalves][2];
  read_bias(p.map, 0, bias);

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
    float projected[8 * kHalves], c[kHalves][32];
    products_begin();
    project_rows<kNumbers, kHalves>(typename Rows::Deep(stages.at(0)), w,
                                    projected);
    const typename Rows::Deep deep_y(stages.at(1));
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
    Found<kHalves> found;
    const float weight[2] = {kKeys ? 1.f : factor[0], kKeys ? 1.f : factor[1]};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      finish_half<kHalves>(projected, half, bias[half], found.u[half]);
      found.look_up(pieces.table, half, weight);
    }
    if (round > 0) {
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
        const auto& f = found.phi[half];
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
        const auto& x = found.phi[n / 4][n % 4];
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
        d[r] = guard[r] * row_product(found.phi, c, r);
        if (t == 0) {
          const float high = high_part(d[r]);
          *reinterpret_cast<uint4*>(last + (row + 8 * r) * 16) =
              make_uint4(pack(high, d[r] - high), 0, 0, 0);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 8 * kHalves; ++j) {
      const float2 x =
          reinterpret_cast<const float2*>(z)[32 * (j / 8) + 8 * t + j % 8];
      float* to = &c[j / 8][4 * (j % 8)];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        to[2 * r] = kKeys ? to[2 * r] + x.x : fmaf(d[r], x.x, to[2 * r]);
        to[2 * r + 1] =
            kKeys ? to[2 * r + 1] + x.y : fmaf(d[r], x.y, to[2 * r + 1]);
      }
    }
    if constexpr (kGradWeight) {
      float* to = p.grad_weight + tile.batch * p.grad_weight_batch +
                  tile.head * p.grad_weight_head + tile.row + row;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = row_product(found.phi, c, r);
        if (t == 0 && valid[r]) to[8 * r] = x;
      }
    }
    float du[kHalves][4];
    pieces.template to_slopes<F::kSlopesKept>(round, found, c, factor, du);
    uint32_t steps[kHalves][2];
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      const float x = du[i / 2][i % 2 * 2], y = du[i / 2][i % 2 * 2 + 1];
      steps[i / 2][i % 2] = pack(x, y);
      grad_b[i / 2][0] += x;
      grad_b[i / 2][1] += y;
    }
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
    const typename Rows::Wide wide_x(stages.at(0)), wide_y(stages.at(1));
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
    pieces.agree(round);
    pieces.add(found, c, factor);
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
  }
  pieces.finish(count, rounds);
  if constexpr (!kPerHead) {  // where stages were
    write_weights<kNumbers, kHalves, F::kGroups>(
        grad_w, grad_b, memory, part + (p.map.shape.knots + 1) * 2 * kChannels);
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
