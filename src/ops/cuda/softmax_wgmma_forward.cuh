#pragma once

#include "ops/cuda/softmax_wgmma.cuh"

// Forward kernels. Each warpgroup has one or two sets of 64 query rows in its
// registers and walks keys 64 kTiles at a time.

namespace luna::cuda::softmax_wgmma {

struct ForwardArgs {
  CUtensorMap query, key, value;  ///< boxes of a tile; pack reads no query
  SoftmaxForward<float> a;
};

/// kPlain: softmax and products of a warpgroup take turns. kAhead: the scores
/// of the next step are made beside this step's sum, and the softmax runs
/// beside that sum. kTwo: the softmax of one of two sets of rows runs beside
/// the other's sum.
enum class Order { kPlain, kAhead, kTwo };
constexpr int queries_of(Order order) { return order == Order::kTwo ? 2 : 1; }

/// `source` has the keys' and values' tiles of step i, and is told when no
/// product reads them any more. What is under way at the end of a loop's body
/// the compiler does not follow: all products end where they began.
template <Order kOrder, int kTiles, int kQueries, typename Source>
__device__ __forceinline__ void attend(Online (&q)[kQueries],
                                       const Rounded (&x)[kQueries], int count,
                                       float factor, Source& source) {
  static_assert(kQueries == queries_of(kOrder));
  constexpr int kKeys = kTiles * kRows;
  const int steps = (count + kKeys - 1) / kKeys;
  float s[kTiles][32];
  Rounded p[kQueries][kTiles];
  const auto score = [&](int m, int i) {
    products_begin();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      multiply_deep(s[n], x[m], source.keys(i) + n * kTileBytes);
    }
    products_commit();
  };
  const auto add = [&](int m, int i) {
    products_begin();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      add_wide(q[m].out, p[m][n], source.values(i) + n * kTileBytes,
               i > 0 || n > 0);
    }
    products_commit();
  };
  const auto weigh = [&](int m, int i) {
    return q[m].template weigh<kTiles>(s, count - i * kKeys, factor);
  };
  const auto settle = [&](int m, bool rise) {
    if (rise) q[m].shrink_out();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) round_to(p[m][n], s[n]);
  };
  source.arrived(0);
  if constexpr (kOrder == Order::kPlain) {
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      score(0, i);
      products_wait<0>();
      settle(0, weigh(0, i));
      if (i + 1 < steps) source.arrived(i + 1);
      add(0, i);
      products_wait<0>();
      source.done(i);
    }
  } else {
    score(0, 0);
    products_wait<0>();
    settle(0, weigh(0, 0));
#pragma unroll 1
    for (int i = 0; i + 1 < steps; ++i) {
      bool rise;
      if constexpr (kOrder == Order::kTwo) {
        score(1, i);
        add(0, i);
        products_wait<1>();
        rise = weigh(1, i);
        products_wait<0>();
        settle(1, rise);
      }
      source.arrived(i + 1);
      score(0, i + 1);
      add(kQueries - 1, i);
      products_wait<1>();
      rise = weigh(0, i + 1);
      products_wait<0>();
      source.done(i);
      settle(0, rise);
    }
    if constexpr (kOrder == Order::kTwo) {
      score(1, steps - 1);
      add(0, steps - 1);
      products_wait<1>();
      const bool rise = weigh(1, steps - 1);
      products_wait<0>();
      settle(1, rise);
    }
    add(kQueries - 1, steps - 1);
    products_wait<0>();
    source.done(steps - 1);
  }
}

// --- Pack ----------------------------------------------------------------

template <int kQueries, int kTiles, int kGroups, int kStages>
struct PackForwardForm {
  static constexpr int kSlots = kRows * kQueries * kGroups;  // of a block
  static constexpr int kThreads = kGroup * kGroups;
  static constexpr int kKeys = kRows * kTiles;
  static constexpr int kStageBytes = 2 * kTiles * kTileBytes;
  using Tokens = Ring<kStages>;
  static constexpr int kBarriers = kStages * kStageBytes;
  static constexpr size_t kMemory =
      kBarriers + sizeof(typename Tokens::Barriers);
};

/// Token tiles, read by all warpgroups of a block.
template <typename Form, int kTiles, int kStages>
struct TokenSource {
  using Tokens = typename Form::Tokens;
  __device__ __forceinline__ void arrived(int i) {
    Tokens::arrived(barriers, i);
  }
  __device__ __forceinline__ uint32_t keys(int i) const {
    return base + i % kStages * Form::kStageBytes;
  }
  __device__ __forceinline__ uint32_t values(int i) const {
    return keys(i) + kTiles * kTileBytes;
  }
  /// The stage before is filled again: by now other warps are done with it.
  __device__ __forceinline__ void done(int i) {
    Tokens::release(barriers, i);
    if (threadIdx.x == 0 && i > 0 && i - 1 + kStages < steps) {
      Tokens::released(barriers, i - 1);
      ask(i - 1 + kStages);
    }
    __syncwarp();
  }
  __device__ void ask(int i) {
    const uint32_t full = Tokens::full(barriers, i);
    arrive_expecting(full, Form::kStageBytes);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int row = begin + i * Form::kKeys + n * kRows;
      copy_rows(keys(i) + n * kTileBytes, &args.key, row, head, batch, full);
      copy_rows(values(i) + n * kTileBytes, &args.value, row, head, batch,
                full);
    }
  }
  const ForwardArgs& args;
  typename Tokens::Barriers& barriers;
  uint32_t base;
  int begin, head, batch, steps;
};

template <Order kOrder, int kTiles, int kGroups, int kStages, int kBlocks>
__global__ void __launch_bounds__(kGroup* kGroups, kBlocks)
    pack_forward_kernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kQueries = queries_of(kOrder);
  using Form = PackForwardForm<kQueries, kTiles, kGroups, kStages>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const SoftmaxForward<float>& a = args.a;
  const SoftmaxProblem<float>& p = a.problem;
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.tokens, number, piece)) return;
  const int group = uniform(threadIdx.x / kGroup);
  const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4,
            t = threadIdx.x % 4;
  const int count = static_cast<int>(piece.count);
  auto& barriers = *reinterpret_cast<typename Form::Tokens::Barriers*>(
      memory + Form::kBarriers);
  TokenSource<Form, kTiles, kStages> tokens = {
      args,
      barriers,
      shared_address(memory),
      static_cast<int>(piece.begin + piece.offset),
      static_cast<int>(head),
      static_cast<int>(piece.batch),
      (count + Form::kKeys - 1) / Form::kKeys};
  if (threadIdx.x == 0) {
    Form::Tokens::init(barriers, 4 * kGroups);
    barrier_init_fence();
    for (int i = 0; i < kStages && i < tokens.steps; ++i) tokens.ask(i);
  }
  __syncthreads();
  const int64_t first_slot = static_cast<int64_t>(blockIdx.y) * Form::kSlots +
                             group * kQueries * kRows;
  const int64_t set = p.shared_slots ? 0 : piece.sequence;
  Rounded x[kQueries];
  Online q[kQueries];
#pragma unroll
  for (int m = 0; m < kQueries; ++m) {
    q[m].begin();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int64_t slot = first_slot + kRows * m + 16 * warp + g + 8 * (i % 2);
      x[m][i] = slot < p.slots
                    ? *reinterpret_cast<const uint32_t*>(
                          row_pointer<__nv_bfloat16>(p.query, set, head, slot) +
                          i / 2 * 8 + 2 * t)
                    : 0u;
    }
  }
  attend<kOrder, kTiles>(q, x, count, p.scale * kLog2E, tokens);
#pragma unroll
  for (int m = 0; m < kQueries; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t slot = first_slot + kRows * m + 16 * warp + g + 8 * h;
      const bool valid = slot < p.slots;
      const float total = mma::row_sum(q[m].sum[h]);
      const float top = q[m].top[h];
      if (a.parts != nullptr) {
        float* part = a.parts + ((number * p.heads + head) * p.slots + slot) *
                                    (kWidth + 2);
        if (valid) {
#pragma unroll
          for (int c = 0; c < 8; ++c) {
            *reinterpret_cast<float2*>(part + 8 * c + 2 * t) = make_float2(
                q[m].out[4 * c + 2 * h], q[m].out[4 * c + 2 * h + 1]);
          }
          if (t == 0) {
            *reinterpret_cast<float2*>(part + kWidth) = make_float2(top, total);
          }
        }
        continue;
      }
      const float inverse = inverse_of(total);
      const int64_t row = valid ? slot : 0;
      store_row(row_pointer<__nv_bfloat16>(a.out, piece.sequence, head, row),
                q[m].out, h, inverse, valid);
      if (!valid) continue;
      float* unrounded =
          row_pointer<float>(a.unrounded, piece.sequence, head, row);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        *reinterpret_cast<float2*>(unrounded + 8 * c + 2 * t) =
            make_float2(q[m].out[4 * c + 2 * h] * inverse,
                        q[m].out[4 * c + 2 * h + 1] * inverse);
      }
      if (t == 0) {
        const int64_t at =
            piece.sequence * a.stats_batch + head * a.stats_head + slot;
        a.max[at] = total == 0.f ? 0.f : top;
        a.inverse[at] = inverse;
      }
    }
  }
}

// --- Unpack --------------------------------------------------------------

template <int kQueries, int kGroups>
struct UnpackForm {
  static constexpr int kThreads = kGroup * kGroups;
  static constexpr int kStages = 2;
  static constexpr int kTokens = kRows * kQueries;  // a warpgroup's at once
  static constexpr int kStageBytes = kQueries * kTileBytes;
  using Tokens = Ring<kStages>;
  struct Barriers {
    typename Tokens::Barriers tokens[kGroups];
    uint64_t slots;
  };
  static constexpr int kSlots = kGroups * kStages * kStageBytes;
  /// Slots' tiles, a multiple of the keys that are seen at once.
  static int tiles(int64_t slots, int at_once) {
    return static_cast<int>((slots + kRows * at_once - 1) / (kRows * at_once)) *
           at_once;
  }
  static size_t memory(int tiles) {
    return kSlots + size_t{2} * tiles * kTileBytes + sizeof(Barriers);
  }
};

/// All slots, which stay.
struct SlotSource {
  __device__ __forceinline__ void arrived(int) {}
  __device__ __forceinline__ uint32_t keys(int i) const {
    return base + i * step;
  }
  __device__ __forceinline__ uint32_t values(int i) const {
    return base + all + i * step;
  }
  __device__ __forceinline__ void done(int) {}
  uint32_t base;
  int step, all;
};

/// `tiles`: of slots; rows beyond the last slot are zeros.
template <Order kOrder, int kTiles, int kGroups, int kBlocks>
__global__ void __launch_bounds__(kGroup* kGroups, kBlocks)
    unpack_forward_kernel(const __grid_constant__ ForwardArgs args, int tiles) {
  constexpr int kQueries = queries_of(kOrder);
  using Form = UnpackForm<kQueries, kGroups>;
  using Tokens = typename Form::Tokens;
  extern __shared__ __align__(1024) unsigned char memory[];
  const SoftmaxForward<float>& a = args.a;
  const SoftmaxProblem<float>& p = a.problem;
  const int head = static_cast<int>(blockIdx.x % p.heads);
  Piece piece;
  if (!locate(p.tokens, blockIdx.x / p.heads, piece)) return;
  const int group = uniform(threadIdx.x / kGroup);
  const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4,
            t = threadIdx.x % 4;
  const int count = static_cast<int>(piece.count),
            batch = static_cast<int>(piece.batch),
            begin = static_cast<int>(piece.begin + piece.offset);
  auto& barriers = *reinterpret_cast<typename Form::Barriers*>(
      memory + Form::kSlots + 2 * tiles * kTileBytes);
  auto& own = barriers.tokens[group];
  const uint32_t stages =
      shared_address(memory) + group * Form::kStages * Form::kStageBytes;
  const uint32_t slots = shared_address(memory) + Form::kSlots;
  const uint32_t resident = shared_address(&barriers.slots);
  // The warpgroup's i-th rows of tokens.
  const auto first_token = [&](int i) {
    return (group + i * kGroups) * Form::kTokens;
  };
  const auto ask = [&](int i) {
    if (first_token(i) >= count) return;
    const uint32_t full = Tokens::full(own, i);
    arrive_expecting(full, Form::kStageBytes);
#pragma unroll
    for (int m = 0; m < kQueries; ++m) {
      copy_rows(stages + i % Form::kStages * Form::kStageBytes + m * kTileBytes,
                &args.query, begin + first_token(i) + m * kRows, head, batch,
                full);
    }
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kGroups; ++i) Tokens::init(barriers.tokens[i], 4);
    barrier_init(resident, 1);
    barrier_init_fence();
    arrive_expecting(resident, 2 * tiles * kTileBytes);
    const int sequence = static_cast<int>(piece.sequence);
    for (int i = 0; i < tiles; ++i) {
      copy_rows(slots + i * kTileBytes, &args.key, i * kRows, head, sequence,
                resident);
      copy_rows(slots + (tiles + i) * kTileBytes, &args.value, i * kRows, head,
                sequence, resident);
    }
  }
  __syncthreads();
  if (threadIdx.x % kGroup == 0) {
    for (int i = 0; i < Form::kStages; ++i) ask(i);
  }
  __syncwarp();
  wait(resident, 0);
  SlotSource source = {slots, kTiles * kTileBytes, tiles * kTileBytes};
  const float factor = p.scale * kLog2E;
  for (int i = 0; first_token(i) < count; ++i) {
    Tokens::arrived(own, i);
    Rounded x[kQueries];
    Online q[kQueries];
#pragma unroll
    for (int m = 0; m < kQueries; ++m) {
      q[m].begin();
      load_left(x[m],
                stages + i % Form::kStages * Form::kStageBytes + m * kTileBytes,
                warp);
    }
    Tokens::release(own, i);
    if (threadIdx.x % kGroup == 0 && first_token(i + Form::kStages) < count) {
      Tokens::released(own, i);
      ask(i + Form::kStages);
    }
    __syncwarp();
    attend<kOrder, kTiles>(q, x, static_cast<int>(p.slots), factor, source);
#pragma unroll
    for (int m = 0; m < kQueries; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = first_token(i) + kRows * m + 16 * warp + g + 8 * h;
        const bool valid = token < count;
        const float inverse = inverse_of(mma::row_sum(q[m].sum[h]));
        const int64_t row = begin + (valid ? token : 0);
        store_row(row_pointer<__nv_bfloat16>(a.out, batch, head, row), q[m].out,
                  h, inverse, valid);
        if (a.max != nullptr && valid && t == 0) {
          a.max[batch * a.stats_batch + head * a.stats_head + row] =
              logsumexp(q[m].top[h], inverse);
        }
      }
    }
  }
}

}  // namespace luna::cuda::softmax_wgmma
