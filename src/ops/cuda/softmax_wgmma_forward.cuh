#pragma once

#include "ops/cuda/softmax_wgmma.cuh"

// Forward kernels and their launches. Each warpgroup has 64 query rows in its
// registers and walks keys 64 at a time.

namespace luna::cuda::softmax_wgmma {

struct ForwardArgs {
  CUtensorMap query, key, value;  ///< boxes of a tile; pack reads no query
  SoftmaxForward<float> a;
};

/// A warpgroup's 64 query rows and what they see of `count` keys: the scores of
/// the next tile are made beside this tile's sum, and the softmax runs beside
/// that sum. `source` has the keys' and values' tiles, and is told when no
/// product reads them any more. What is under way at the end of a loop's body
/// the compiler does not follow: all products end where they began. (ptxas 13.0
/// gave x and the weights the same registers where a loop's body began with the
/// scores and ended with the sum.)
template <Extras kExtras, typename Source>
__device__ __forceinline__ void attend(Online& q, const Rounded& x, int count,
                                       float factor, Source& source) {
  const int steps = (count + kRows - 1) / kRows;
  Result s;
  Rounded weights;
  const auto score = [&](int i) {
    products_begin();
    multiply_deep(s, x, source.keys(i));
    products_commit();
  };
  const auto add = [&](int i) {
    products_begin();
    add_wide(q.out, weights, source.values(i), i > 0);
    products_commit();
  };
  const auto weigh = [&](int i) {
    return q.template weigh<kExtras>(s, count - i * kRows, factor, source);
  };
  const auto settle = [&](bool rise) {
    if (rise) q.shrink_out();
    round_to(weights, s);
  };
  source.arrived(0);
  score(0);
  source.prepare(0);
  products_wait<0>();
  settle(weigh(0));
#pragma unroll 1
  for (int i = 0; i + 1 < steps; ++i) {
    source.arrived(i + 1);
    score(i + 1);
    add(i);
    source.prepare(i + 1);
    products_wait<1>();
    const bool rise = weigh(i + 1);
    products_wait<0>();
    source.done(i);
    settle(rise);
  }
  add(steps - 1);
  products_wait<0>();
  source.done(steps - 1);
}

// --- Pack ----------------------------------------------------------------

/// 64 tokens as a warp's columns.
struct TokenColumns {
  uint2 keys[kRows];  ///< dropout's
  float weights[kRows];
};

template <int kGroups, Extras kExtras>
struct PackForwardForm {
  static constexpr int kSlots = kRows * kGroups;  // of a block
  static constexpr int kThreads = kGroup * kGroups;
  static constexpr int kStages = 4;
  static constexpr int kStageBytes = 2 * kTileBytes;
  using Tokens = Ring<kStages>;
  static constexpr int kBarriers = kStages * kStageBytes;
  static constexpr int kColumns = kBarriers + 128;  // a warp's own each
  static constexpr size_t kMemory =
      kColumns +
      (kExtras == Extras::kNone ? 0 : 4 * kGroups * sizeof(TokenColumns));
  static_assert(sizeof(typename Tokens::Barriers) <= 128);
};

/// Token tiles, read by all warpgroups of a block.
template <typename Form, Extras kExtras, bool kPacked>
struct TokenSource {
  using Tokens = typename Form::Tokens;
  __device__ __forceinline__ void arrived(int i) {
    Tokens::arrived(barriers, i);
    if constexpr (kPacked) {
      // Scores of keys beyond the end are set to -inf, whatever they are; but
      // their weights, 0, are multiplied with the values.
      if (i == steps - 1 && count < steps * kRows) {
        clear_rows<Form::kThreads>(values(i), count - i * kRows, kRows);
        fence_async();
        __syncthreads();
      }
    }
  }
  __device__ __forceinline__ uint32_t keys(int i) const {
    return base + i % Form::kStages * Form::kStageBytes;
  }
  __device__ __forceinline__ uint32_t values(int i) const {
    return keys(i) + kTileBytes;
  }
  /// The stage before is filled again: by now other warps are done with it.
  __device__ __forceinline__ void done(int i) {
    Tokens::release(barriers, i);
    if (threadIdx.x == 0 && i > 0 && i - 1 + Form::kStages < steps) {
      Tokens::released(barriers, i - 1);
      ask(i - 1 + Form::kStages);
    }
    __syncwarp();
  }
  __device__ void ask(int i) {
    const uint32_t full = Tokens::full(barriers, i);
    arrive_expecting(full, Form::kStageBytes);
    const int row = begin + i * kRows;
    copy_rows(keys(i), &args.key, row, head, batch, full);
    copy_rows(values(i), &args.value, row, head, batch, full);
  }

  // The tokens' weights and dropout's keys a warp works out together.
  __device__ __forceinline__ bool weighted() const { return weight != nullptr; }
  __device__ __forceinline__ float2 weights(int c) const {
    return *reinterpret_cast<const float2*>(columns->weights + 8 * c +
                                            2 * (threadIdx.x % 4));
  }
  __device__ __forceinline__ float keep(int i) const {
    const uint2 k = columns->keys[i / 4 * 8 + 2 * (threadIdx.x % 4) + i % 2];
    return dropout.at(static_cast<uint64_t>(k.y) << 32 | k.x,
                      first_slot + 8 * (i / 2 % 2));
  }
  __device__ __forceinline__ void prepare(int i) {
    if constexpr (kExtras == Extras::kNone) return;
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kRows; r += 32) {
      const int column = r + threadIdx.x % 32, token = i * kRows + column;
      if (weighted()) {
        columns->weights[column] = token < count ? weight[token] : 0.f;
      }
      if constexpr (kExtras == Extras::kDropout) {
        const uint64_t key = dropout.token_key(offset + token);
        columns->keys[column] = make_uint2(static_cast<uint32_t>(key),
                                           static_cast<uint32_t>(key >> 32));
      }
    }
    __syncwarp();
  }

  const ForwardArgs& args;
  typename Tokens::Barriers& barriers;
  uint32_t base;
  int begin, head, batch, steps;
  TokenColumns* columns;  ///< this warp's
  const float* weight;    ///< of the piece's tokens; null: all 1
  Keep<float> dropout;
  int64_t offset;  ///< of the piece in its sequence
  int count;
  uint32_t first_slot;  ///< of this thread
};

/// kBlocks: of a multiprocessor.
template <int kGroups, int kBlocks, Extras kExtras, bool kPacked>
__global__ void __launch_bounds__(kGroup* kGroups, kBlocks)
    pack_forward_kernel(const __grid_constant__ ForwardArgs args) {
  using Form = PackForwardForm<kGroups, kExtras>;
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
  const int64_t first_slot = static_cast<int64_t>(blockIdx.y) * Form::kSlots +
                             group * kRows + 16 * warp + g;
  TokenSource<Form, kExtras, kPacked> tokens = {
      args,
      barriers,
      shared_address(memory),
      static_cast<int>(piece.begin + piece.offset),
      static_cast<int>(head),
      static_cast<int>(piece.batch),
      (count + kRows - 1) / kRows,
      reinterpret_cast<TokenColumns*>(memory + Form::kColumns) +
          threadIdx.x / 32,
      p.weight.data == nullptr
          ? nullptr
          : p.weight.data + piece.batch * p.weight.batch +
                head * p.weight.head + piece.begin + piece.offset,
      Keep<float>(p.dropout, piece.sequence, head),
      piece.offset,
      count,
      static_cast<uint32_t>(first_slot)};
  if (threadIdx.x == 0) {
    Form::Tokens::init(barriers, 4 * kGroups);
    barrier_init_fence();
    for (int i = 0; i < Form::kStages && i < tokens.steps; ++i) tokens.ask(i);
  }
  __syncthreads();
  const int64_t set = p.shared_slots ? 0 : piece.sequence;
  Rounded x;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int64_t slot = first_slot + 8 * (i % 2);
    x[i] = slot < p.slots && i / 2 * 8 < p.depth
               ? *reinterpret_cast<const uint32_t*>(
                     row_pointer<__nv_bfloat16>(p.query, set, head, slot) +
                     i / 2 * 8 + 2 * t)
               : 0u;
  }
  Online q;
  q.begin();
  attend<kExtras>(q, x, count, p.scale * kLog2E, tokens);
  const int width = static_cast<int>(p.width);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t slot = first_slot + 8 * h;
    const bool valid = slot < p.slots;
    const float total = mma::row_sum(q.sum[h]);
    if (a.parts != nullptr) {
      float* part =
          a.parts + ((number * p.heads + head) * p.slots + slot) * (width + 2);
      if (valid) {
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          if (8 * c >= width) break;
          *reinterpret_cast<float2*>(part + 8 * c + 2 * t) =
              make_float2(q.out[4 * c + 2 * h], q.out[4 * c + 2 * h + 1]);
        }
        if (t == 0) {
          *reinterpret_cast<float2*>(part + width) =
              make_float2(q.top[h], total);
        }
      }
      continue;
    }
    const float inverse = inverse_of(total);
    const int64_t row = valid ? slot : 0;
    store_row(row_pointer<__nv_bfloat16>(a.out, piece.sequence, head, row),
              width, q.out, h, inverse, valid);
    if (!valid) continue;
    float* unrounded =
        row_pointer<float>(a.unrounded, piece.sequence, head, row);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (8 * c >= width) break;
      *reinterpret_cast<float2*>(unrounded + 8 * c + 2 * t) = make_float2(
          q.out[4 * c + 2 * h] * inverse, q.out[4 * c + 2 * h + 1] * inverse);
    }
    if (t == 0) {
      const int64_t at =
          piece.sequence * a.stats_batch + head * a.stats_head + slot;
      a.max[at] = total == 0.f ? 0.f : q.top[h];
      a.inverse[at] = inverse;
    }
  }
}

// --- Unpack --------------------------------------------------------------

/// Four warpgroups, each with 64 tokens at a time.
struct UnpackForm {
  static constexpr int kGroups = 4;
  static constexpr int kThreads = kGroup * kGroups;
  static constexpr int kStages = 2;
  using Tokens = Ring<kStages>;
  struct Barriers {
    Tokens::Barriers tokens[kGroups];
    uint64_t slots;
  };
  static constexpr int kSlots = kGroups * kStages * kTileBytes;
  static constexpr int kWeights = 256;  // after the barriers
  static size_t memory(int tiles, bool weights) {
    return kSlots + size_t{2} * tiles * kTileBytes + kWeights +
           (weights ? tiles * kRows * sizeof(float) : 0);
  }
  static_assert(sizeof(Barriers) <= kWeights);
};

/// All slots, which stay.
struct SlotSource {
  __device__ __forceinline__ void arrived(int) {}
  __device__ __forceinline__ uint32_t keys(int i) const {
    return base + i * kTileBytes;
  }
  __device__ __forceinline__ uint32_t values(int i) const {
    return base + all + i * kTileBytes;
  }
  __device__ __forceinline__ void done(int) {}

  __device__ __forceinline__ bool weighted() const { return weight != nullptr; }
  __device__ __forceinline__ float2 weights(int c) const {
    return *reinterpret_cast<const float2*>(weight + first_slot + 8 * c +
                                            2 * (threadIdx.x % 4));
  }
  __device__ __forceinline__ float keep(int i) const {
    return dropout.at(token_keys[i / 2 % 2],
                      first_slot + i / 4 * 8 + 2 * (threadIdx.x % 4) + i % 2);
  }
  __device__ __forceinline__ void prepare(int i) { first_slot = i * kRows; }

  uint32_t base;
  int all;
  const float* weight;  ///< in shared memory, of slots; null: all 1
  Keep<float> dropout;
  uint64_t token_keys[2] = {};  ///< of this thread's tokens
  int first_slot = 0;
};

/// `tiles`: of slots; rows beyond the last slot are zeros.
template <Extras kExtras, bool kPacked>
__global__ void __launch_bounds__(UnpackForm::kThreads, 1)
    unpack_forward_kernel(const __grid_constant__ ForwardArgs args, int tiles) {
  using Form = UnpackForm;
  using Tokens = Form::Tokens;
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
  auto& barriers = *reinterpret_cast<Form::Barriers*>(memory + Form::kSlots +
                                                      2 * tiles * kTileBytes);
  auto& own = barriers.tokens[group];
  const uint32_t stages =
      shared_address(memory) + group * Form::kStages * kTileBytes;
  const uint32_t slots = shared_address(memory) + Form::kSlots;
  const uint32_t resident = shared_address(&barriers.slots);
  const auto stage = [&](int i) {
    return stages + i % Form::kStages * kTileBytes;
  };
  // The warpgroup's i-th rows of tokens.
  const auto first_token = [&](int i) {
    return (group + i * Form::kGroups) * kRows;
  };
  const auto ask = [&](int i) {
    if (first_token(i) >= count) return;
    const uint32_t full = Tokens::full(own, i);
    arrive_expecting(full, kTileBytes);
    copy_rows(stage(i), &args.query, begin + first_token(i), head, batch, full);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < Form::kGroups; ++i) {
      Tokens::init(barriers.tokens[i], 4);
    }
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
  float* weights = nullptr;
  if (kExtras != Extras::kNone && p.weight.data != nullptr) {
    weights = reinterpret_cast<float*>(memory + Form::kSlots +
                                       2 * tiles * kTileBytes + Form::kWeights);
    const float* from =
        p.weight.data + piece.sequence * p.weight.batch + head * p.weight.head;
    for (int i = threadIdx.x; i < tiles * kRows; i += Form::kThreads) {
      weights[i] = i < p.slots ? from[i] : 0.f;
    }
  }
  __syncthreads();
  if (threadIdx.x % kGroup == 0) {
    for (int i = 0; i < Form::kStages; ++i) ask(i);
  }
  __syncwarp();
  wait(resident, 0);
  SlotSource source = {slots, tiles * kTileBytes, weights,
                       Keep<float>(p.dropout, piece.sequence, head)};
  const float factor = p.scale * kLog2E;
  for (int i = 0; first_token(i) < count; ++i) {
    Tokens::arrived(own, i);
    Rounded x;
    load_left(x, stage(i), warp);
    if constexpr (kPacked) clear_left(x, count - first_token(i), warp);
    Tokens::release(own, i);
    if (threadIdx.x % kGroup == 0 && first_token(i + Form::kStages) < count) {
      Tokens::released(own, i);
      ask(i + Form::kStages);
    }
    __syncwarp();
    if constexpr (kExtras == Extras::kDropout) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        source.token_keys[h] = source.dropout.token_key(
            piece.offset + first_token(i) + 16 * warp + g + 8 * h);
      }
    }
    Online q;
    q.begin();
    attend<kExtras>(q, x, static_cast<int>(p.slots), factor, source);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int token = first_token(i) + 16 * warp + g + 8 * h;
      const bool valid = token < count;
      const float inverse = inverse_of(mma::row_sum(q.sum[h]));
      const int64_t row = begin + (valid ? token : 0);
      store_row(row_pointer<__nv_bfloat16>(a.out, batch, head, row),
                static_cast<int>(p.width), q.out, h, inverse, valid);
      if (a.max != nullptr && valid && t == 0) {
        a.max[batch * a.stats_batch + head * a.stats_head + row] =
            logsumexp(q.top[h], inverse);
      }
    }
  }
}

// --- Launches ------------------------------------------------------------

template <int kGroups, int kBlocks, Extras kExtras, bool kPacked>
void launch_pack(const ForwardArgs& args, cudaStream_t stream) {
  using Form = PackForwardForm<kGroups, kExtras>;
  static_assert(kBlocks * Form::kMemory <= kMemoryLimit);
  const SoftmaxProblem<float>& p = args.a.problem;
  const dim3 grid(
      static_cast<unsigned>(p.tokens.bound * p.heads),
      static_cast<unsigned>((p.slots + Form::kSlots - 1) / Form::kSlots));
  const auto kernel = pack_forward_kernel<kGroups, kBlocks, kExtras, kPacked>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(Form::kMemory));
  kernel<<<grid, Form::kThreads, Form::kMemory, stream>>>(args);
  check_launch("softmax_wgmma_forward, pack");
}

template <Extras kExtras, bool kPacked>
void launch_unpack(const ForwardArgs& args, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = args.a.problem;
  const int tiles = static_cast<int>((p.slots + kRows - 1) / kRows);
  const size_t memory = UnpackForm::memory(tiles, p.weight.data != nullptr);
  const auto kernel = unpack_forward_kernel<kExtras, kPacked>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  kernel<<<static_cast<unsigned>(p.tokens.bound * p.heads),
           UnpackForm::kThreads, memory, stream>>>(args, tiles);
  check_launch("softmax_wgmma_forward, unpack");
}

template <bool kPacked>
void launch_forward(const ForwardArgs& args, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = args.a.problem;
  with_extras(p, [&]<Extras kExtras>() {
    if (!p.pack) {
      launch_unpack<kExtras, kPacked>(args, stream);
    } else if (p.slots <= 64) {
      launch_pack<1, 3, kExtras, kPacked>(args, stream);
    } else if (p.slots <= 128) {
      launch_pack<2, 2, kExtras, kPacked>(args, stream);
    } else {
      launch_pack<4, 1, kExtras, kPacked>(args, stream);
    }
  });
}

// Compiled in a file of its own.
extern template void launch_forward<true>(const ForwardArgs&, cudaStream_t);

}  // namespace luna::cuda::softmax_wgmma
