#pragma once

#include "ops/cuda/softmax_wgmma.cuh"

// Backward kernels and their launches, in the names of SoftmaxMmaBackward. A
// block has two warpgroups, all slots and 128 tokens at a time:
//
//   pack    a warpgroup has 64 tokens and walks the slots; grad_x and grad_y
//           come from its registers
//   unpack  a warpgroup has half of the slots and walks the tokens; grad_p and
//           grad_z come from its registers
//
// The gradients of the scores then lie in shared memory for the third
// gradient (pack: grad_p of half of the slots, unpack: grad_x of 64 tokens).

namespace luna::cuda::softmax_wgmma {

struct BackwardArgs {
  CUtensorMap x, y, p, z;  ///< boxes of a tile
  SoftmaxMmaBackward a;
};

/// kChunks: tiles of slots, 1, 2 or 4.
template <int kChunks>
struct BackwardForm {
  static constexpr int kThreads = 2 * kGroup;
  static constexpr int kTokens = 2 * kRows;
  static constexpr int kStages = 2;
  static constexpr int kOwn = (kChunks + 1) / 2;  // slots' tiles of a warpgroup
  static constexpr int kStageBytes = 4 * kTileBytes;  // x, y of 128 tokens
  using Tokens = Ring<kStages>;
  struct Barriers {
    typename Tokens::Barriers tokens;
    uint64_t slots, slopes_free;
  };
  static constexpr int kP = kStages * kStageBytes;
  static constexpr int kZ = kP + kChunks * kTileBytes;
  static constexpr int kSlopes = kZ + kChunks * kTileBytes;
  static constexpr int kStats = kSlopes + 2 * kChunks * kTileBytes;
  static constexpr int kStatsBytes = 2 * 2 * kTokens * sizeof(float);
  static constexpr int kKeys = kStats + kStatsBytes;  // dropout's, of tokens
  static constexpr int kBarriers = kKeys + 2 * kTokens * int{sizeof(uint2)};
  static constexpr size_t kMemory = kBarriers + sizeof(Barriers);
  static_assert(kStatsBytes >= 2 * kChunks * kRows * int{sizeof(float)});
  static_assert(kMemory <= kMemoryLimit);
};

/// A block's place and what is on its way to it.
template <int kChunks, bool kPacked>
struct BackwardBlock {
  using Form = BackwardForm<kChunks>;
  using Tokens = typename Form::Tokens;

  /// By all threads; a barrier of the block comes after.
  __device__ __forceinline__ void start() {
    rounds = (count + Form::kTokens - 1) / Form::kTokens;
    if (threadIdx.x != 0) return;
    Tokens::init(barriers.tokens, 8);
    const uint32_t resident = shared_address(&barriers.slots);
    barrier_init(resident, 1);
    barrier_init(shared_address(&barriers.slopes_free), 8);
    barrier_init_fence();
    arrive_expecting(resident, 2 * kChunks * kTileBytes);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      copy_rows(p(c), &args.p, c * kRows, head, slot_batch, resident);
      copy_rows(z(c), &args.z, c * kRows, head, sequence, resident);
    }
    for (int i = 0; i < Form::kStages; ++i) ask(i);
  }
  __device__ __forceinline__ void ask(int round) {
    if (round >= rounds) return;
    const uint32_t full = Tokens::full(barriers.tokens, round);
    arrive_expecting(full, Form::kStageBytes);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = begin + round * Form::kTokens + h * kRows;
      copy_rows(x(round, h), &args.x, row, head, batch, full);
      copy_rows(y(round, h), &args.y, row, head, batch, full);
    }
  }
  /// By all threads.
  __device__ __forceinline__ void arrived(int round) {
    Tokens::arrived(barriers.tokens, round);
    if constexpr (kPacked) {
      const int left = count - round * Form::kTokens;
      if (left < Form::kTokens) {  // the last round
        clear_rows<Form::kThreads>(x(round, 0), left, Form::kTokens);
        clear_rows<Form::kThreads>(y(round, 0), left, Form::kTokens);
        fence_async();
        __syncthreads();
      }
    }
  }
  /// A warpgroup's j-th tile of slots. A single one both have; the second
  /// leaves nothing of it.
  __device__ __forceinline__ static int own(int group, int j) {
    return kChunks == 1 ? 0 : group + 2 * j;
  }
  /// The stage of the round before is filled again.
  __device__ __forceinline__ void refill(int round) {
    if (threadIdx.x == 0 && round > 0 && round - 1 + Form::kStages < rounds) {
      Tokens::released(barriers.tokens, round - 1);
      ask(round - 1 + Form::kStages);
    }
    __syncwarp();
  }
  /// Products of the round are done in this warp.
  __device__ __forceinline__ void release(int round) {
    Tokens::release(barriers.tokens, round);
    if (threadIdx.x % 32 == 0) arrive(shared_address(&barriers.slopes_free));
  }
  /// Those of the round before are in all warps: its slopes may go.
  __device__ __forceinline__ void wait_for_slopes(int round) const {
    if (round > 0) {
      wait(shared_address(&barriers.slopes_free), (round - 1) & 1);
    }
  }
  __device__ __forceinline__ uint32_t x(int round, int half) const {
    return base + round % Form::kStages * Form::kStageBytes + half * kTileBytes;
  }
  __device__ __forceinline__ uint32_t y(int round, int half) const {
    return x(round, half) + 2 * kTileBytes;
  }
  __device__ __forceinline__ uint32_t p(int c) const {
    return base + Form::kP + c * kTileBytes;
  }
  __device__ __forceinline__ uint32_t z(int c) const {
    return base + Form::kZ + c * kTileBytes;
  }
  __device__ __forceinline__ uint32_t slopes(int half, int c) const {
    return base + Form::kSlopes + (half * kChunks + c) * kTileBytes;
  }

  const BackwardArgs& args;
  typename Form::Barriers& barriers;
  uint32_t base;
  int begin, count, head, batch, sequence, slot_batch;
  int rounds = 0;
};

/// Weights (s) from scores, then slopes (d) from the weights' gradients;
/// norms and shifts are those of the columns; large: of any norm. Rows from
/// `rows` on count nothing. With extras each of a thread's rows has a weight of
/// its `own`, 0 from `rows` on, and keep(i) is dropout's factor of number i.
/// One product, d's, is under way.
template <Extras kExtras, typename Kept>
__device__ __forceinline__ void weigh(Result& s, Result& d, Rounded& weights,
                                      Rounded& slopes, const float* norms,
                                      const float* shifts, int rows, int warp,
                                      float factor, bool large,
                                      const float (&own)[2], const Kept& keep) {
  const int t = threadIdx.x % 4, row = 16 * warp + threadIdx.x % 32 / 4;
  const float f = factor_of(s, large, factor);
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float2 norm = *reinterpret_cast<const float2*>(norms + 8 * c + 2 * t);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[4 * c + i] =
          mma::power(fmaf(s[4 * c + i], f, -(i % 2 == 0 ? norm.x : norm.y)));
    }
  }
  if constexpr (kExtras != Extras::kNone) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s[i] = is_live(own[i / 2 % 2]) ? s[i] * own[i / 2 % 2] : 0.f;
    }
  } else if (rows < kRows) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (row + 8 * (i / 2 % 2) >= rows) s[i] = 0.f;
    }
  }
  products_wait<0>();
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float2 shift =
        *reinterpret_cast<const float2*>(shifts + 8 * c + 2 * t);
#pragma unroll
    for (int i = 4 * c; i < 4 * c + 4; i += 2) {
      const float a = keep(i), b = keep(i + 1);
      weights[i / 2] = mma::pack<__nv_bfloat16>(s[i] * a, s[i + 1] * b);
      slopes[i / 2] = mma::pack<__nv_bfloat16>(
          s[i] * (a * d[i] - shift.x), s[i + 1] * (b * d[i + 1] - shift.y));
    }
  }
}

/// A result's rows, tokens from `first` on, to a tensor of rows of `width`.
__device__ __forceinline__ void store_tokens(const Rows& to, int width,
                                             const Result& x, int batch,
                                             int head, int first, int left,
                                             int warp, float gain) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = 16 * warp + threadIdx.x % 32 / 4 + 8 * h;
    const bool valid = row < left;
    store_row(
        row_pointer<__nv_bfloat16>(to, batch, head, first + (valid ? row : 0)),
        width, x, h, gain, valid);
  }
}
/// A block's sums of slots from `first` on: to its part, or, where `parts` is
/// null, to the gradient.
__device__ __forceinline__ void store_slots(float* parts, const Rows& to,
                                            int width, const Result& x,
                                            int64_t part, int sequence,
                                            int head, int first, int slots,
                                            int warp, float gain) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int slot = first + 16 * warp + threadIdx.x % 32 / 4 + 8 * h;
    const bool valid = slot < slots;
    if (parts == nullptr) {
      store_row(
          row_pointer<__nv_bfloat16>(to, sequence, head, valid ? slot : 0),
          width, x, h, gain, valid);
    } else if (valid) {
      float* row = parts + (part * slots + slot) * width + 2 * t;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (8 * c >= width) break;
        *reinterpret_cast<float2*>(row + 8 * c) =
            make_float2(x[4 * c + 2 * h] * gain, x[4 * c + 2 * h + 1] * gain);
      }
    }
  }
}

// --- Pack ------------------------------------------------------------------

/// Slots' logsumexps and deltas by a whole block; infinite beyond the last
/// slot, so that its weights are 0. Whether this thread's are large.
template <int kThreads>
__device__ __forceinline__ bool load_slot_stats(const SoftmaxMmaBackward& a,
                                                int sequence, int head,
                                                int rows, float* stats) {
  const SoftmaxProblem<float>& p = a.problem;
  const int part = threadIdx.x % 16;
  bool large = false;
  for (int i = threadIdx.x / 16; i < rows; i += kThreads / 16) {
    const bool valid = i < p.slots;
    const int64_t at = (sequence * p.heads + head) * p.slots + i;
    float delta = 0.f;
    if (valid && 4 * part < p.width) {
      const uint2 z = *reinterpret_cast<const uint2*>(
          row_pointer<__nv_bfloat16>(a.z, sequence, head, i) + 4 * part);
      const float4 out =
          *reinterpret_cast<const float4*>(a.output + at * p.width + 4 * part);
      const auto low = [](uint32_t w) { return __uint_as_float(w << 16); };
      const auto high = [](uint32_t w) {
        return __uint_as_float(w & 0xffff0000u);
      };
      delta = low(z.x) * out.x + high(z.x) * out.y + low(z.y) * out.z +
              high(z.y) * out.w;
    }
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {
      delta += __shfl_xor_sync(0xffffffffu, delta, step);
    }
    if (part == 0) {
      stats[i] = valid ? logsumexp(a.max[at], a.inverse[at]) : INFINITY;
      stats[rows + i] = delta;
      large |= is_large(stats[i]);
    }
  }
  return large;
}

template <int kChunks, Extras kExtras, bool kPacked>
__global__ void __launch_bounds__(2 * kGroup, 1)
    pack_backward_kernel(const __grid_constant__ BackwardArgs args) {
  using Form = BackwardForm<kChunks>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const SoftmaxMmaBackward& a = args.a;
  const SoftmaxProblem<float>& p = a.problem;
  const int head = static_cast<int>(blockIdx.x % p.heads);
  Piece piece;
  if (!locate(p.tokens, blockIdx.x / p.heads, piece)) return;
  const int group = uniform(threadIdx.x / kGroup);
  const int warp = threadIdx.x / 32 % 4;
  BackwardBlock<kChunks, kPacked> block = {
      args,
      *reinterpret_cast<typename Form::Barriers*>(memory + Form::kBarriers),
      shared_address(memory),
      static_cast<int>(piece.begin + piece.offset),
      static_cast<int>(piece.count),
      head,
      static_cast<int>(piece.batch),
      static_cast<int>(piece.sequence),
      p.shared_slots ? 0 : static_cast<int>(piece.sequence)};
  block.start();
  auto* stats = reinterpret_cast<float*>(memory + Form::kStats);
  const bool large = __syncthreads_or(load_slot_stats<Form::kThreads>(
      a, block.sequence, head, kChunks * kRows, stats));
  wait(shared_address(&block.barriers.slots), 0);
  const float factor = p.scale * kLog2E;
  const int depth = static_cast<int>(p.depth);
  const int width = static_cast<int>(p.width);
  const Keep<float> dropout(p.dropout, block.sequence, head);
  const float* token_weights =
      p.weight.data == nullptr ? nullptr
                               : p.weight.data + block.batch * p.weight.batch +
                                     head * p.weight.head + block.begin;
  const int row = 16 * warp + threadIdx.x % 32 / 4;
  Result grad_p[Form::kOwn];
#pragma unroll
  for (int j = 0; j < Form::kOwn; ++j) clear(grad_p[j]);
#pragma unroll 1
  for (int round = 0; round < block.rounds; ++round) {
    block.arrived(round);
    const int first = round * Form::kTokens + group * kRows;
    float own[2] = {1.f, 1.f};
    uint64_t keys[2] = {};
    if constexpr (kExtras != Extras::kNone) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = first + row + 8 * h;
        if (token >= block.count) {
          own[h] = 0.f;
        } else if (token_weights != nullptr) {
          own[h] = token_weights[token];
        }
        if constexpr (kExtras == Extras::kDropout) {
          keys[h] = dropout.token_key(piece.offset + token);
        }
      }
    }
    Result grad_x, grad_y;
#pragma unroll 1
    for (int c = 0; c < kChunks; ++c) {
      Result s, d;
      products_begin();
      multiply_deep(s, block.x(round, group), block.p(c));
      products_commit();
      multiply_deep(d, block.y(round, group), block.z(c));
      products_commit();
      products_wait<1>();
      Rounded weights, slopes;
      weigh<kExtras>(s, d, weights, slopes, stats + c * kRows,
                     stats + (kChunks + c) * kRows, block.count - first, warp,
                     factor, large, own, [&](int i) {
                       if constexpr (kExtras != Extras::kDropout) return 1.f;
                       return dropout.at(keys[i / 2 % 2],
                                         c * kRows + i / 4 * 8 +
                                             2 * (threadIdx.x % 4) + i % 2);
                     });
      if (c == 0) {
        block.wait_for_slopes(round);
        block.refill(round);
      }
      put_tile(block.slopes(group, c), slopes, warp);
      products_begin();
      add_wide(grad_y, weights, block.z(c), c > 0);
      add_wide(grad_x, slopes, block.p(c), c > 0);
      products_commit();
    }
    fence_async();
    __syncthreads();
    products_begin();
#pragma unroll
    for (int j = 0; j < Form::kOwn; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        add_turned(grad_p[j], block.slopes(h, block.own(group, j)),
                   block.x(round, h));
      }
    }
    products_commit();
    products_wait<1>();
    store_tokens(a.grad_x, depth, grad_x, block.batch, head,
                 block.begin + first, block.count - first, warp, p.scale);
    store_tokens(a.grad_y, width, grad_y, block.batch, head,
                 block.begin + first, block.count - first, warp, 1.f);
    products_wait<0>();
    block.release(round);
  }
  const int64_t part = blockIdx.x;  // piece * heads + head
#pragma unroll
  for (int j = 0; j < Form::kOwn; ++j) {
    store_slots(a.parts, a.grad_p, depth, grad_p[j], part, block.sequence, head,
                (group + 2 * j) * kRows, static_cast<int>(p.slots), warp,
                p.scale);
  }
}

// --- Unpack ----------------------------------------------------------------

template <int kChunks, Extras kExtras, bool kPacked>
__global__ void __launch_bounds__(2 * kGroup, 1)
    unpack_backward_kernel(const __grid_constant__ BackwardArgs args) {
  using Form = BackwardForm<kChunks>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const SoftmaxMmaBackward& a = args.a;
  const SoftmaxProblem<float>& p = a.problem;
  const int head = static_cast<int>(blockIdx.x % p.heads);
  Piece piece;
  if (!locate(p.tokens, blockIdx.x / p.heads, piece)) return;
  const int group = uniform(threadIdx.x / kGroup);
  const int warp = threadIdx.x / 32 % 4;
  const int sequence = static_cast<int>(piece.sequence);
  BackwardBlock<kChunks, kPacked> block = {
      args,
      *reinterpret_cast<typename Form::Barriers*>(memory + Form::kBarriers),
      shared_address(memory),
      static_cast<int>(piece.begin + piece.offset),
      static_cast<int>(piece.count),
      head,
      static_cast<int>(piece.batch),
      sequence,
      sequence};
  block.start();
  const Keep<float> dropout(p.dropout, sequence, head);
  auto* keys = reinterpret_cast<uint2*>(memory + Form::kKeys);
  // Dropout's keys of a round's tokens.
  const auto put_keys = [&](int round) {
    if (kExtras != Extras::kDropout || threadIdx.x >= Form::kTokens) return;
    const uint64_t key =
        dropout.token_key(piece.offset + round * Form::kTokens + threadIdx.x);
    keys[round % 2 * Form::kTokens + threadIdx.x] = make_uint2(
        static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
  };
  const float* slot_weights =
      p.weight.data == nullptr
          ? nullptr
          : p.weight.data + sequence * p.weight.batch + head * p.weight.head;
  const int row = 16 * warp + threadIdx.x % 32 / 4;
  // Tokens' logsumexps, then deltas, of a round: a thread fetches one number.
  auto* stats = reinterpret_cast<float*>(memory + Form::kStats);
  const int64_t all = (kPacked ? 1 : p.tokens.sequences) * p.heads * a.length;
  const float* rows =
      (threadIdx.x < Form::kTokens ? a.logsumexp : a.rows + all) +
      (block.batch * p.heads + head) * a.length + block.begin;
  const auto fetch = [&](int round) {
    const int token = round * Form::kTokens + threadIdx.x % Form::kTokens;
    return token < block.count ? rows[token]
                               : (threadIdx.x < Form::kTokens ? INFINITY : 0.f);
  };
  stats[threadIdx.x] = fetch(0);
  put_keys(0);
  bool large = __syncthreads_or(threadIdx.x < Form::kTokens &&
                                is_large(stats[threadIdx.x]));
  wait(shared_address(&block.barriers.slots), 0);
  const float factor = p.scale * kLog2E;
  const int slots = static_cast<int>(p.slots);
  const int depth = static_cast<int>(p.depth);
  const int width = static_cast<int>(p.width);
  Result grad_p[Form::kOwn], grad_z[Form::kOwn];
#pragma unroll
  for (int j = 0; j < Form::kOwn; ++j) {
    clear(grad_p[j]);
    clear(grad_z[j]);
  }
#pragma unroll 1
  for (int round = 0; round < block.rounds; ++round) {
    const float next = fetch(round + 1);
    const float* norms = stats + round % 2 * 2 * Form::kTokens;
    block.arrived(round);
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int j = 0; j < Form::kOwn; ++j) {
        const int c = block.own(group, j);
        Result s, d;
        products_begin();
        multiply_deep(s, block.p(c), block.x(round, h));
        products_commit();
        multiply_deep(d, block.z(c), block.y(round, h));
        products_commit();
        products_wait<1>();
        Rounded weights, slopes;
        float own[2] = {1.f, 1.f};
        if constexpr (kExtras != Extras::kNone) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const int slot = c * kRows + row + 8 * k;
            if (slot >= slots) {
              own[k] = 0.f;
            } else if (slot_weights != nullptr) {
              own[k] = slot_weights[slot];
            }
          }
        }
        const uint2* tokens_keys = keys + round % 2 * Form::kTokens + h * kRows;
        weigh<kExtras>(
            s, d, weights, slopes, norms + h * kRows,
            norms + Form::kTokens + h * kRows, slots - c * kRows, warp, factor,
            large, own, [&](int i) {
              if constexpr (kExtras != Extras::kDropout) return 1.f;
              const uint2 key =
                  tokens_keys[i / 4 * 8 + 2 * (threadIdx.x % 4) + i % 2];
              return dropout.at(static_cast<uint64_t>(key.y) << 32 | key.x,
                                c * kRows + row + 8 * (i / 2 % 2));
            });
        if (h == 0 && j == 0) block.wait_for_slopes(round);
        if (kChunks > 1 || group == 0) {
          put_tile(block.slopes(h, c), slopes, warp);
        }
        products_begin();
        add_wide(grad_z[j], weights, block.y(round, h));
        add_wide(grad_p[j], slopes, block.x(round, h));
        products_commit();
      }
      if (h == 0) block.refill(round);
    }
    stats[(round + 1) % 2 * 2 * Form::kTokens + threadIdx.x] = next;
    put_keys(round + 1);
    fence_async();
    large = __syncthreads_or(threadIdx.x < Form::kTokens && is_large(next));
    Result grad_x;
    products_begin();
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      add_turned(grad_x, block.slopes(group, c), block.p(c), c > 0);
    }
    products_commit();
    products_wait<0>();
    block.release(round);
    const int first = round * Form::kTokens + group * kRows;
    store_tokens(a.grad_x, depth, grad_x, block.batch, head,
                 block.begin + first, block.count - first, warp, p.scale);
  }
  const int64_t part = blockIdx.x;  // piece * heads + head
  float* parts_z = a.parts == nullptr
                       ? nullptr
                       : a.parts + p.tokens.bound * p.heads * slots * depth;
#pragma unroll
  for (int j = 0; j < Form::kOwn; ++j) {
    const int first_slot = (group + 2 * j) * kRows;
    store_slots(a.parts, a.grad_p, depth, grad_p[j], part, sequence, head,
                first_slot, slots, warp, p.scale);
    store_slots(parts_z, a.grad_z, width, grad_z[j], part, sequence, head,
                first_slot, slots, warp, 1.f);
  }
}

// --- Launches --------------------------------------------------------------

template <int kChunks, Extras kExtras, bool kPacked>
void launch_chunks(const BackwardArgs& args, cudaStream_t stream) {
  using Form = BackwardForm<kChunks>;
  const SoftmaxProblem<float>& p = args.a.problem;
  const auto kernel = p.pack
                          ? pack_backward_kernel<kChunks, kExtras, kPacked>
                          : unpack_backward_kernel<kChunks, kExtras, kPacked>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(Form::kMemory));
  kernel<<<static_cast<unsigned>(p.tokens.bound * p.heads), Form::kThreads,
           Form::kMemory, stream>>>(args);
  check_launch("softmax_wgmma_backward");
}

template <bool kPacked>
void launch_backward(const BackwardArgs& args, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = args.a.problem;
  with_extras(p, [&]<Extras kExtras>() {
    if (p.slots <= 64) {
      launch_chunks<1, kExtras, kPacked>(args, stream);
    } else if (p.slots <= 128) {
      launch_chunks<2, kExtras, kPacked>(args, stream);
    } else {
      launch_chunks<4, kExtras, kPacked>(args, stream);
    }
  });
}

// Compiled in a file of its own.
extern template void launch_backward<true>(const BackwardArgs&, cudaStream_t);

}  // namespace luna::cuda::softmax_wgmma
