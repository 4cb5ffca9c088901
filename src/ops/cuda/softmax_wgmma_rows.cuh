#pragma once

#include "ops/cuda/softmax_wgmma.cuh"

// Unpack's backward begins with each token's logsumexp and delta: a warpgroup
// has 64 tokens and walks all slots.

namespace luna::cuda::softmax_wgmma {

struct BackwardArgs {
  CUtensorMap x, y, p, z;  ///< boxes of a tile
  SoftmaxMmaBackward a;
};

struct RowsForm {
  static constexpr int kGroups = 4;
  static constexpr int kThreads = kGroup * kGroups;
  static constexpr int kStages = 2;
  static constexpr int kStageBytes = 2 * kTileBytes;
  using Tokens = Ring<kStages>;
  struct Barriers {
    Tokens::Barriers tokens[kGroups];
    uint64_t slots;
  };
  static constexpr int kSlots = kGroups * kStages * kStageBytes;
  static size_t memory(int tiles) {
    return kSlots + size_t{2} * tiles * kTileBytes + sizeof(Barriers);
  }
};

__global__ void __launch_bounds__(RowsForm::kThreads, 1)
    unpack_rows_kernel(const __grid_constant__ BackwardArgs args, int tiles) {
  using Form = RowsForm;
  using Tokens = Form::Tokens;
  extern __shared__ __align__(1024) unsigned char memory[];
  const SoftmaxMmaBackward& a = args.a;
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
      shared_address(memory) + group * Form::kStages * Form::kStageBytes;
  const uint32_t slots_p = shared_address(memory) + Form::kSlots,
                 slots_z = slots_p + tiles * kTileBytes;
  const uint32_t resident = shared_address(&barriers.slots);
  const auto first_token = [&](int i) {
    return (group + i * Form::kGroups) * kRows;
  };
  const auto ask = [&](int i) {
    if (first_token(i) >= count) return;
    const uint32_t full = Tokens::full(own, i);
    const uint32_t to = stages + i % Form::kStages * Form::kStageBytes;
    arrive_expecting(full, Form::kStageBytes);
    copy_rows(to, &args.x, begin + first_token(i), head, batch, full);
    copy_rows(to + kTileBytes, &args.y, begin + first_token(i), head, batch,
              full);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < Form::kGroups; ++i) Tokens::init(barriers.tokens[i], 4);
    barrier_init(resident, 1);
    barrier_init_fence();
    arrive_expecting(resident, 2 * tiles * kTileBytes);
    const int sequence = static_cast<int>(piece.sequence);
    for (int i = 0; i < tiles; ++i) {
      copy_rows(slots_p + i * kTileBytes, &args.p, i * kRows, head, sequence,
                resident);
      copy_rows(slots_z + i * kTileBytes, &args.z, i * kRows, head, sequence,
                resident);
    }
  }
  __syncthreads();
  if (threadIdx.x % kGroup == 0) {
    for (int i = 0; i < Form::kStages; ++i) ask(i);
  }
  __syncwarp();
  wait(resident, 0);
  const float factor = p.scale * kLog2E;
  const int slots = static_cast<int>(p.slots);
  const int64_t all = p.tokens.sequences * p.heads * a.length;
  for (int i = 0; first_token(i) < count; ++i) {
    Tokens::arrived(own, i);
    const uint32_t stage = stages + i % Form::kStages * Form::kStageBytes;
    Rounded x, y;
    load_left(x, stage, warp);
    load_left(y, stage + kTileBytes, warp);
    Tokens::release(own, i);
    if (threadIdx.x % kGroup == 0 && first_token(i + Form::kStages) < count) {
      Tokens::released(own, i);
      ask(i + Form::kStages);
    }
    __syncwarp();
    // Each thread has a maximum of its own until the end.
    float top[2] = {kLowest, kLowest}, total[2] = {}, delta[2] = {};
#pragma unroll 1
    for (int c = 0; c < tiles; ++c) {
      Result s, d;
      products_begin();
      multiply_deep(s, x, slots_p + c * kTileBytes);
      products_commit();
      multiply_deep(d, y, slots_z + c * kTileBytes);
      products_commit();
      products_wait<1>();
      if (slots - c * kRows < kRows) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          if (j / 4 * 8 + 2 * t + j % 2 >= slots - c * kRows) s[j] = -INFINITY;
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float high = -INFINITY;
#pragma unroll
        for (int j = 2 * h; j < 32; j += 4) {
          high = fmaxf(high, fmaxf(s[j], s[j + 1]));
        }
        high *= factor;
        if (high > top[h] + kSlack) {
          const float shrink = mma::power(top[h] - high);
          top[h] = high;
          total[h] *= shrink;
          delta[h] *= shrink;
        }
      }
      const bool large =
          __any_sync(0xffffffffu, is_large(top[0]) || is_large(top[1]));
      const float f = factor_of(s, large, factor);
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        s[j] = mma::power(fmaf(s[j], f, -top[j / 2 % 2]));
        total[j / 2 % 2] += s[j];
      }
      products_wait<0>();
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        delta[j / 2 % 2] = fmaf(s[j], d[j], delta[j / 2 % 2]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float high = mma::row_max(top[h]);
      const float shrink = mma::power(top[h] - high);
      const float inverse = inverse_of(mma::row_sum(total[h] * shrink));
      const float shift = mma::row_sum(delta[h] * shrink) * inverse;
      const int token = first_token(i) + 16 * warp + g + 8 * h;
      if (t == 0 && token < count) {
        float* to =
            a.rows + (batch * p.heads + head) * a.length + begin + token;
        to[0] = logsumexp(high, inverse);
        to[all] = shift;
      }
    }
  }
}

}  // namespace luna::cuda::softmax_wgmma
