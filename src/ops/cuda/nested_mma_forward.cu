// Forward: sums over each piece, what stands before each, then chunk by chunk
//
//   U = q S_k + tril(q k^T) a,  w = softmax(s U / t),
//   y = (w S_v + tril(w a^T) v) / t,  S_k += k^T a,  S_v += a^T v.

#include "ops/cuda/nested_mma.cuh"

namespace luna::cuda {
namespace nested_mma {
namespace {

template <int G>
struct SumsShape {
  static constexpr int kStages = G == 1 ? 2 : 4;
  static constexpr int kStageBytes = 3 * kTileBytes;
  static constexpr size_t kMemory = size_t{kWarps / G} * kStages * kStageBytes;
};

template <int G>
__global__ void __launch_bounds__(kBlock, 2) sums_kernel(NestedMma p) {
  using Shape = SumsShape<G>;
  extern __shared__ __align__(128) unsigned char memory[];
  const Walk<G> w(p);
  if (!w.live) return;
  const uint32_t stages = mma::shared_address(memory) +
                          w.group * Shape::kStages * Shape::kStageBytes;
  const int depth = static_cast<int>(p.depth),
            width = static_cast<int>(p.width);
  const auto start = [&](int chunk) {
    if (chunk < w.chunks) {
      const uint32_t stage =
          stages + chunk % Shape::kStages * Shape::kStageBytes;
      w.copy(stage, p.pack_key, chunk, depth);
      w.copy(stage + kTileBytes, p.key, chunk, depth);
      w.copy(stage + 2 * kTileBytes, p.value, chunk, width);
    }
    mma::commit_copies();
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) start(i);
  Left packed[kDepth];
  load_packed(packed, p.packed, w.piece.sequence, w.head, w.own, p.slots,
              p.depth);
  const Keep<float> keep(p.pack_dropout, w.piece.sequence, w.head);
  State sk = {}, sv = {};
  for (int chunk = 0; chunk < w.chunks; ++chunk) {
    mma::wait_copies<Shape::kStages - 2>();
    w.barrier();
    start(chunk + Shape::kStages - 1);
    const uint32_t stage = stages + chunk % Shape::kStages * Shape::kStageBytes;
    Left a;
    pack_map<G>(a, p, w, keep, packed, stage, chunk);
    add_rows(sk, a, stage + kTileBytes);
    add_rows(sv, a, stage + 2 * kTileBytes);
  }
  mma::wait_copies<0>();
  float* to = w.state(p.states, p);
  store_state(sk, to);
  store_state(sv, to + kStateSize);
}

// A thread walks one number of all pieces of a sequence.
__global__ void scan_kernel(NestedMmaScan p, int64_t size) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t head = blockIdx.y % p.heads, sequence = blockIdx.y / p.heads;
  if (e >= size) return;
  const int64_t within = e % (2 * kStateSize), c = within % kStateSize / 128;
  const int64_t i = within / 32 % 4, lane = within % 32;
  const int64_t slot = e / (2 * kStateSize) * 16 + lane / 4 + 8 * (i / 2);
  const int64_t column = 8 * c + 2 * (lane % 4) + i % 2;
  const bool of_value = within >= kStateSize;
  const bool valid = slot < p.slots && column < (of_value ? p.width : p.depth);
  const int64_t pair = sequence * p.heads + head;
  const int64_t at = of_value ? (pair * p.slots + slot) * p.width + column
                              : (pair * p.depth + column) * p.slots + slot;
  const float* start = of_value ? p.value_start : p.key_start;
  float* total = of_value ? p.value_total : p.key_total;
  float running = valid && start != nullptr ? start[at] : 0.f;
  const int64_t first = first_piece(p.pieces, sequence);
  const int64_t count = first_piece(p.pieces, sequence + 1) - first;
  constexpr int kAhead = 16;
  for (int64_t from = 0; from < count; from += kAhead) {
    float x[kAhead];
    const auto part = [&](int64_t j) {
      const int64_t number = first + (p.backwards ? count - 1 - j : j);
      return p.parts + (number * p.heads + head) * size + e;
    };
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (from + j < count) x[j] = *part(from + j);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (from + j < count) {
        *part(from + j) = running;
        running += x[j];
      }
    }
  }
  if (valid && total != nullptr) total[at] = running;
}

template <int G>
struct ForwardShape {
  static constexpr int kStages = G == 1 ? 3 : 4;
  static constexpr int kStageBytes = 4 * kTileBytes;
  static constexpr int kStaged = kWarps / G * kStages * kStageBytes;
  static constexpr size_t kMemory =
      kStaged + (G == 1 ? 0 : kWarps / G * (kRoom<G> + kExchange<G>));
};

template <int G>
__global__ void __launch_bounds__(kBlock, G == 1 ? 1 : 2)
    forward_kernel(NestedMma p) {
  using Shape = ForwardShape<G>;
  extern __shared__ __align__(128) unsigned char memory[];
  const Walk<G> w(p);
  if (!w.live) return;
  unsigned char* own_stages =
      memory + w.group * Shape::kStages * Shape::kStageBytes;
  const uint32_t stages = mma::shared_address(own_stages);
  unsigned char* own_room =
      memory + Shape::kStaged + w.group * (kRoom<G> + kExchange<G>);
  auto* exchange = reinterpret_cast<float*>(own_room + kRoom<G>);
  int turn = 0;
  const int depth = static_cast<int>(p.depth),
            width = static_cast<int>(p.width);
  const auto start = [&](int chunk) {
    if (chunk < w.chunks) {
      const uint32_t stage =
          stages + chunk % Shape::kStages * Shape::kStageBytes;
      w.copy(stage, p.query, chunk, depth);
      w.copy(stage + kTileBytes, p.pack_key, chunk, depth);
      w.copy(stage + 2 * kTileBytes, p.key, chunk, depth);
      w.copy(stage + 3 * kTileBytes, p.value, chunk, width);
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
  State sk, sv;
  const float* from = w.state(p.states, p);
  load_state(sk, from);
  load_state(sv, from + kStateSize);
  for (int chunk = 0; chunk < w.chunks; ++chunk) {
    mma::wait_copies<Shape::kStages - 2>();
    w.barrier();
    start(chunk + Shape::kStages - 1);
    const int slot = chunk % Shape::kStages;
    const uint32_t tile_q = stages + slot * Shape::kStageBytes;
    const uint32_t tile_k = tile_q + 2 * kTileBytes;
    const uint32_t tile_v = tile_q + 3 * kTileBytes;
    Left a, l;
    pack_map<G>(a, p, w, keep_a, packed, tile_q + kTileBytes, chunk);
    Sum u[2] = {};
    {
      Left q[kDepth];
      load_rows(q, tile_q);
      times_state(u, q, sk);
      Sum s[2] = {};
      token_products(s, q, tile_k);
      cut_triangle<false>(s);
      mma::to_left<T>(l, s[0], s[1]);
    }
    mma::add<T>(u[0], l, a[0], a[2]);
    mma::add<T>(u[1], l, a[1], a[3]);
    const float inverse[2] = {w.inverse(chunk, 0), w.inverse(chunk, 1)};
    const float gain[2] = {p.scale * inverse[0], p.scale * inverse[1]};
    slot_softmax<G>(u, gain, p, mask, exchange, turn, w);
    if (keep_w.on) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          u[n][i] *= keep_w(w.before + chunk * 16 + w.g + 8 * (i / 2),
                            w.own + 8 * n + 2 * w.t + i % 2);
        }
      }
    }
    Left weights;
    mma::to_left<T>(weights, u[0], u[1]);
    Sum m[2] = {};
    mma::add<T>(m[0], weights, mma::transposed(a[0]), mma::transposed(a[1]));
    mma::add<T>(m[1], weights, mma::transposed(a[2]), mma::transposed(a[3]));
    cut_triangle<false>(m);
    mma::to_left<T>(l, m[0], m[1]);
    {
      State y = {};
      add_state(y, weights, sv);
      add_rows(y, l, tile_v);
      leave<G>(y, inverse,
               G == 1 ? own_stages + slot * Shape::kStageBytes : own_room,
               p.out, w, chunk, width);
    }
    add_rows(sk, a, tile_k);
    add_rows(sv, a, tile_v);
  }
  mma::wait_copies<0>();
}

}  // namespace
}  // namespace nested_mma

int64_t nested_mma_groups(int64_t slots) {
  return slots <= 16 ? 1 : (slots <= 32 ? 2 : (slots <= 64 ? 4 : 8));
}
int64_t nested_mma_state(int64_t slots) {
  return nested_mma_groups(slots) * 2 * nested_mma::kStateSize;
}
int64_t nested_mma_map_bytes(int64_t slots, int64_t size) {
  return (size + 15) / 16 * 2 * nested_mma_groups(slots) * 32 * 16;
}

void nested_mma_sums(const NestedMma& p, cudaStream_t stream) {
  using namespace nested_mma;
  dispatch_groups(p.slots, [&]<int G>() {
    launch<G>(sums_kernel<G>, p, SumsShape<G>::kMemory, stream,
              "nested_mma_sums");
  });
}

void nested_mma_scan(const NestedMmaScan& p, cudaStream_t stream) {
  const int64_t size = nested_mma_state(p.slots);
  if (p.pieces.sequences * p.heads == 0) return;
  const dim3 grid(static_cast<unsigned>(blocks_for(size, 128)),
                  static_cast<unsigned>(p.pieces.sequences * p.heads));
  nested_mma::scan_kernel<<<grid, 128, 0, stream>>>(p, size);
  check_launch("nested_mma_scan");
}

void nested_mma_forward(const NestedMma& p, cudaStream_t stream) {
  using namespace nested_mma;
  dispatch_groups(p.slots, [&]<int G>() {
    launch<G>(forward_kernel<G>, p, ForwardShape<G>::kMemory, stream,
              "nested_mma_forward");
  });
}

}  // namespace luna::cuda
