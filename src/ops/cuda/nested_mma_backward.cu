// Backward, with h the output's gradient over the position. From the first
// chunk to the last:
//
//   dw = h S_v^T + tril(h v^T) a,  du from dw by the softmax,
//   dq = du S_k^T + tril(du a^T) k;
//
// and from the last to the first, R_k = sum q^T du and R_v = sum w^T h over
// what is behind:
//
//   dv = a R_v + triu(a w^T) h,  dk = a R_k^T + triu(a du^T) q,
//   da = v R_v^T + triu(v h^T) w + k R_k + triu(k q^T) du,
//
// from which the gradients of the pack's keys and of the memory follow.

#include "ops/cuda/nested_mma.cuh"

namespace luna::cuda {
namespace nested_mma {
namespace {

template <int G>
struct BackwardShape {
  static constexpr int kStages = G == 1 ? 2 : 3;
  static constexpr int kStageBytes = 5 * kTileBytes;
  static constexpr int kStaged = kWarps / G * kStages * kStageBytes;
  static constexpr int kOwn = kRoom<G> + kExchange<G> + G * kTileBytes;
  static constexpr size_t kMemory = kStaged + kWarps / G * kOwn;
};

/// The tiles of a chunk, in the order in which they are staged.
struct Tiles {
  __device__ explicit Tiles(uint32_t stage)
      : q(stage),
        pack_key(stage + kTileBytes),
        k(stage + 2 * kTileBytes),
        v(stage + 3 * kTileBytes),
        g(stage + 4 * kTileBytes) {}
  uint32_t q, pack_key, k, v, g;
};

template <int G>
__device__ __forceinline__ void start_chunk(const NestedMma& p,
                                            const Walk<G>& w, uint32_t stage,
                                            int chunk) {
  const Tiles tiles(stage);
  const int depth = static_cast<int>(p.depth),
            width = static_cast<int>(p.width);
  w.copy(tiles.q, p.query, chunk, depth);
  w.copy(tiles.pack_key, p.pack_key, chunk, depth);
  w.copy(tiles.k, p.key, chunk, depth);
  w.copy(tiles.v, p.value, chunk, width);
  w.copy(tiles.g, p.grad_out, chunk, width);
}

/// Where a warp's w and du of a chunk are kept.
template <int G>
__device__ __forceinline__ uint4* map_of(const NestedMma& p, const Walk<G>& w,
                                         int chunk) {
  const int64_t chunks = (p.pieces.size + 15) / 16;
  return static_cast<uint4*>(p.maps) +
         (((w.number * p.heads + w.head) * chunks + chunk) * 2 * G +
          w.warp % G) *
             32 +
         w.lane;
}

template <int G>
__global__ void __launch_bounds__(kBlock, 1) queries_kernel(NestedMma p) {
  using Shape = BackwardShape<G>;
  extern __shared__ __align__(128) unsigned char memory[];
  const Walk<G> w(p);
  if (!w.live) return;
  const uint32_t stages = mma::shared_address(memory) +
                          w.group * Shape::kStages * Shape::kStageBytes;
  unsigned char* room = memory + Shape::kStaged + w.group * Shape::kOwn;
  auto* exchange = reinterpret_cast<float*>(room + kRoom<G>);
  int turn = 0;
  const auto start = [&](int chunk) {
    if (chunk < w.chunks) {
      start_chunk<G>(p, w, stages + chunk % Shape::kStages * Shape::kStageBytes,
                     chunk);
    }
    mma::commit_copies();
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) start(i);
  Left packed[kDepth];
  load_packed(packed, p.packed, w.piece.sequence, w.head, w.own, p.slots,
              p.depth);
  const Keep<float> keep_a(p.pack_dropout, w.piece.sequence, w.head);
  const Keep<float> keep_w(p.unpack_dropout, w.piece.sequence, w.head);
  const bool* mask =
      p.mask == nullptr ? nullptr : p.mask + w.piece.sequence * p.slots;
  State sk, sv, rk = {}, rv = {};
  const float* from = w.state(p.states, p);
  load_state(sk, from);
  load_state(sv, from + kStateSize);
  for (int chunk = 0; chunk < w.chunks; ++chunk) {
    mma::wait_copies<Shape::kStages - 2>();
    w.barrier();
    start(chunk + Shape::kStages - 1);
    const Tiles tiles(stages + chunk % Shape::kStages * Shape::kStageBytes);
    Left a, l;
    pack_map<G>(a, p, w, keep_a, packed, tiles.pack_key, chunk);
    Sum u[2] = {}, dw[2] = {};
    // The same sum for both: rows . state + tril(rows . other^T) a.
    const auto read = [&](Sum(&out)[2], uint32_t rows, uint32_t other,
                          const State& state) {
      Left x[kDepth];
      load_rows(x, rows);
      times_state(out, x, state);
      Sum s[2] = {};
      token_products(s, x, other);
      cut_triangle<false>(s);
      mma::to_left<T>(l, s[0], s[1]);
      mma::add<T>(out[0], l, a[0], a[2]);
      mma::add<T>(out[1], l, a[1], a[3]);
    };
    read(u, tiles.q, tiles.k, sk);
    read(dw, tiles.g, tiles.v, sv);
    const float inverse[2] = {w.inverse(chunk, 0), w.inverse(chunk, 1)};
    const float gain[2] = {p.scale * inverse[0], p.scale * inverse[1]};
    slot_softmax<G>(u, gain, p, mask, exchange, turn, w);
    float delta[2] = {};
    float kept[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        kept[n][i] = keep_w.on
                         ? keep_w(w.before + chunk * 16 + w.g + 8 * (i / 2),
                                  w.own + 8 * n + 2 * w.t + i % 2)
                         : 1.f;
        dw[n][i] *= inverse[i / 2] * kept[n][i];
        delta[i / 2] = fmaf(u[n][i], dw[n][i], delta[i / 2]);
      }
    }
    across<G, false>(delta, exchange, turn, w);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        dw[n][i] = gain[i / 2] * u[n][i] * (dw[n][i] - delta[i / 2]);
        u[n][i] *= kept[n][i] * inverse[i / 2];
      }
    }
    Left weights, du, turned;
    mma::to_left<T>(weights, u[0], u[1]);
    mma::to_left<T>(du, dw[0], dw[1]);
    uint4* map = map_of<G>(p, w, chunk);
    map[0] = make_uint4(weights[0], weights[1], weights[2], weights[3]);
    map[G * 32] = make_uint4(du[0], du[1], du[2], du[3]);
    mma::transpose(turned, weights);
    add_rows(rv, turned, tiles.g);
    mma::transpose(turned, du);
    add_rows(rk, turned, tiles.q);
    {
      Sum m[2] = {};
      mma::add<T>(m[0], du, mma::transposed(a[0]), mma::transposed(a[1]));
      mma::add<T>(m[1], du, mma::transposed(a[2]), mma::transposed(a[3]));
      cut_triangle<false>(m);
      mma::to_left<T>(l, m[0], m[1]);
      State y = {};
      add_state(y, du, sk);
      add_rows(y, l, tiles.k);
      const float one[2] = {1.f, 1.f};
      leave<G>(y, one, room, p.grad_query, w, chunk, static_cast<int>(p.depth));
    }
    add_rows(sk, a, tiles.k);
    add_rows(sv, a, tiles.v);
  }
  mma::wait_copies<0>();
  float* to = w.state(p.rests, p);
  store_state(rk, to);
  store_state(rv, to + kStateSize);
}

template <int G>
__global__ void __launch_bounds__(kBlock, 1) keys_kernel(NestedMma p) {
  using Shape = BackwardShape<G>;
  extern __shared__ __align__(128) unsigned char memory[];
  const Walk<G> w(p);
  if (!w.live) return;
  const uint32_t stages = mma::shared_address(memory) +
                          w.group * Shape::kStages * Shape::kStageBytes;
  unsigned char* room = memory + Shape::kStaged + w.group * Shape::kOwn;
  const uint32_t packed = mma::shared_address(room + kRoom<G> + kExchange<G>);
  const int depth = static_cast<int>(p.depth),
            width = static_cast<int>(p.width);
  // Steps count from the last chunk.
  const auto start = [&](int step) {
    if (step < w.chunks) {
      start_chunk<G>(p, w, stages + step % Shape::kStages * Shape::kStageBytes,
                     w.chunks - 1 - step);
    }
    mma::commit_copies();
  };
  Tile::template copy<T, 32 * G>(
      packed,
      static_cast<const T*>(p.packed.data) +
          row_at(p.packed, w.piece.sequence, w.head, 0),
      p.packed.row, 16 * G, p.slots, depth, threadIdx.x % (32 * G));
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) start(i);
  const Keep<float> keep(p.pack_dropout, w.piece.sequence, w.head);
  State rk, rv, sum = {};
  const float* from = w.state(p.rests, p);
  load_state(rk, from);
  load_state(rv, from + kStateSize);
  const float one[2] = {1.f, 1.f};
  for (int step = 0; step < w.chunks; ++step) {
    const int chunk = w.chunks - 1 - step;
    const uint4* map = map_of<G>(p, w, chunk);
    const uint4 first = map[0], second = map[G * 32];
    mma::wait_copies<Shape::kStages - 2>();
    w.barrier();
    start(step + Shape::kStages - 1);
    const Tiles tiles(stages + step % Shape::kStages * Shape::kStageBytes);
    const Left weights = {first.x, first.y, first.z, first.w};
    const Left du = {second.x, second.y, second.z, second.w};
    Left turned_weights, turned_du, l;
    mma::transpose(turned_weights, weights);
    mma::transpose(turned_du, du);
    Sum s[2] = {};
    {
      Left x[kDepth];
      load_rows(x, tiles.pack_key);
      mma::multiply<T, D>(s, x, packed, w.own);
    }
    float slope[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int slot = w.own + 8 * n + 2 * w.t + i % 2;
        float x = omega(p.elu, s[n][i] * p.scale, slope[n][i]);
        if (keep.on) {
          const float k = keep(w.before + chunk * 16 + w.g + 8 * (i / 2), slot);
          x *= k;
          slope[n][i] *= k;
        }
        s[n][i] = slot < p.slots ? x : 0.f;
        if (slot >= p.slots) slope[n][i] = 0.f;
      }
    }
    Left a;
    mma::to_left<T>(a, s[0], s[1]);
    // a . state + triu(a map^T) rows
    const auto gradient = [&](const Left& map, uint32_t rows,
                              const State& state, const Rows& to, int columns) {
      Sum m[2] = {};
      mma::add<T>(m[0], a, map[0], map[2]);
      mma::add<T>(m[1], a, map[1], map[3]);
      cut_triangle<true>(m);
      mma::to_left<T>(l, m[0], m[1]);
      State y = {};
      add_state(y, a, state);
      add_rows(y, l, rows);
      leave<G>(y, one, room, to, w, chunk, columns);
    };
    gradient(weights, tiles.g, rv, p.grad_value, width);
    gradient(du, tiles.q, rk, p.grad_key, depth);
    Sum da[2] = {};
    const auto add_to_da = [&](uint32_t rows, uint32_t other,
                               const State& state, const Left& map) {
      Left x[kDepth];
      load_rows(x, rows);
      times_state(da, x, state);
      Sum m[2] = {};
      token_products(m, x, other);
      cut_triangle<true>(m);
      mma::to_left<T>(l, m[0], m[1]);
      mma::add<T>(da[0], l, map[0], map[2]);
      mma::add<T>(da[1], l, map[1], map[3]);
    };
    add_to_da(tiles.v, tiles.g, rv, turned_weights);
    add_to_da(tiles.k, tiles.q, rk, turned_du);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) da[n][i] *= slope[n][i] * p.scale;
    }
    Left scores, turned;
    mma::to_left<T>(scores, da[0], da[1]);
    mma::transpose(turned, scores);
    add_rows(sum, turned, tiles.pack_key);
    {
      State y = {};
      add_rows(y, scores, packed + w.own * Tile::kRowBytes);
      leave<G>(y, one, room, p.grad_pack_key, w, chunk, depth);
    }
    add_rows(rv, turned_weights, tiles.g);
    add_rows(rk, turned_du, tiles.q);
  }
  mma::wait_copies<0>();
  float* part =
      p.packed_parts + (w.number * p.heads + w.head) * p.slots * p.depth;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int slot = w.own + w.g + 8 * h, column = 8 * c + 2 * w.t;
      if (slot < p.slots && column < depth) {
        *reinterpret_cast<float2*>(part + slot * p.depth + column) =
            make_float2(sum[c][2 * h], sum[c][2 * h + 1]);
      }
    }
  }
}

}  // namespace
}  // namespace nested_mma

void nested_mma_backward_queries(const NestedMma& p, cudaStream_t stream) {
  using namespace nested_mma;
  dispatch_groups(p.slots, [&]<int G>() {
    launch<G>(queries_kernel<G>, p, BackwardShape<G>::kMemory, stream,
              "nested_mma_backward_queries");
  });
}
void nested_mma_backward_keys(const NestedMma& p, cudaStream_t stream) {
  using namespace nested_mma;
  dispatch_groups(p.slots, [&]<int G>() {
    launch<G>(keys_kernel<G>, p, BackwardShape<G>::kMemory, stream,
              "nested_mma_backward_keys");
  });
}

}  // namespace luna::cuda
