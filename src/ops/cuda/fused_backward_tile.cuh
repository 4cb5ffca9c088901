#pragma once

// A tile of the fused backward: u and y S^T, phi by look-up, du in the thread
// that made u. Then, all at once, dx = du W, dW += x^T du and (queries)
// dS += phi^T y.

#include "ops/cuda/fused_backward_form.cuh"

namespace luna::cuda::fused {

/// Where a warpgroup's operands stand.
template <typename F, int kHalves, bool kPerHead>
struct Places {
  __device__ Places(unsigned char* memory, int group)
      : group(group),
        row(static_cast<int>(threadIdx.x % kGroup / 32 * 16 +
                             threadIdx.x % 32 / 4)),
        t(static_cast<int>(threadIdx.x % 4)),
        extra(memory + F::kExtra + group * kHalves * F::kExtraBytes),
        state(memory + F::kState + group * kHalves * F::Rows::kBytes),
        slopes(memory + F::kSlopes + group * kHalves * kNarrowBytes),
        last(memory + F::kLast + group * kNarrowBytes),
        projection(memory + F::kProjection + own(group)),
        projection_back(memory + F::kBack + own(group)),
        z(reinterpret_cast<float*>(memory + F::kZ) +
          group * kHalves * kFeatures) {}

  int group, row, t;
  /// Features by tokens (queries), or the state for dv (keys).
  unsigned char* extra;
  unsigned char *state, *slopes, *last, *projection, *projection_back;
  float* z;

 private:
  __device__ static int own(int group) {
    return kPerHead ? group * F::ProjectionRows::Rows::kBytes : 0;
  }
};

/// What a warpgroup adds up for the projection. Columns of x by projections:
/// thread (g, t) of warp w has projections 2 t and 2 t + 1 of columns 64 piece
/// + 16 w + g and 8 more.
template <int kNumbers, int kHalves>
struct ProjectionSums {
  float w[kHalves][Block<kNumbers>::kPieces][4] = {}, b[kHalves][2] = {};
};

/// Of a thread's two rows; 0 beyond the tile's end.
__device__ __forceinline__ void read_row_factors(const Factor<float>& row,
                                                 const Tile& tile, int at,
                                                 float (&factors)[2]) {
  const float* from = row.data == nullptr
                          ? nullptr
                          : row.data + tile.batch * row.batch +
                                tile.head * row.head + tile.row + at;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    factors[r] = at + 8 * r >= tile.count ? 0.f
                 : from == nullptr        ? 1.f
                                          : from[8 * r];
  }
}

/// `factors` are those of the tile's rows, made ready by the tile before where
/// there is one (`read_factors`), and in the end those of the next.
template <typename F, int kNumbers, int kHalves, bool kPerHead, bool kKeys,
          bool kGradWeight, typename ReadFactors>
__device__ __forceinline__ void backward_tile(
    const FusedBackward& p, const Places<F, kHalves, kPerHead>& at,
    typename F::BackwardStages& stages, typename F::Pieces& pieces,
    const typename F::BackwardStages::Tile& tile, int round, int count,
    const float (&bias)[kHalves][2], float (&factors)[2],
    SumsOf<kNumbers, kHalves>* state_sums,
    ProjectionSums<kNumbers, kHalves>& projection,
    const ReadFactors& read_factors) {
  using Rows = typename F::Rows;
  using ProjectionRows = typename F::ProjectionRows;
  const int t = at.t, row = at.row;
  const typename ProjectionRows::Rows::Deep w(shared_address(at.projection));
  const typename ProjectionRows::Rows::Wide back(
      shared_address(at.projection_back));
  const NarrowOperand narrow_last(shared_address(at.last));
  float projected[8 * kHalves], c[kHalves][32];
  products_begin();
  project_rows<kNumbers, kHalves>(typename Rows::Deep(stages.at(0)), w,
                                  projected);
  const typename Rows::Deep deep_y(stages.at(1));
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const typename Rows::Deep s(shared_address(at.state + half * Rows::kBytes));
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
          shared_address(at.extra + half * F::kExtraBytes));
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
          at.extra + n / 4 * F::kExtraBytes +
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
        *reinterpret_cast<uint4*>(at.last + (row + 8 * r) * 16) =
            make_uint4(pack(high, d[r] - high), 0, 0, 0);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 8 * kHalves; ++j) {
    const float2 x =
        reinterpret_cast<const float2*>(at.z)[32 * (j / 8) + 8 * t + j % 8];
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
    projection.b[i / 2][0] += x;
    projection.b[i / 2][1] += y;
  }
#pragma unroll
  for (int i = 0; i < 2 * kHalves; ++i) {
    *reinterpret_cast<uint32_t*>(at.slopes + i / 2 * kNarrowBytes +
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
  group_barrier(at.group);
  if (F::kAhead && round + 1 < count) read_factors(stages.next());
  products_begin();
  const typename Rows::Wide wide_x(stages.at(0)), wide_y(stages.at(1));
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const NarrowOperand narrow_slopes(
        shared_address(at.slopes + half * kNarrowBytes));
    const WideOperand features(
        shared_address(at.extra + half * F::kExtraBytes));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < Rows::kPieces; ++i) {
        // Of rows of 32 numbers: y's follow, and what they give is not read.
        multiply<true, true>(projection.w[half][i], wide_x.step(k, i),
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
}

}  // namespace luna::cuda::fused
