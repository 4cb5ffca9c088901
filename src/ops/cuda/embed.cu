#include "ops/cuda/embed.h"

#include <algorithm>

#include "ops/cuda/parts.cuh"
#include "ops/cuda/runs.cuh"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ bool is_real(const Embed& e, int64_t token) {
  return e.mask == nullptr || e.mask[token];
}

/// A packed token's place in its sequence, of the filler 0.
__device__ __forceinline__ int64_t place_of(const Embed& e, int64_t token) {
  int64_t low = 0, high = e.batch;
  while (low < high) {  // the last sequence that starts at or before it
    const int64_t middle = (low + high + 1) / 2;
    if (e.starts[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t place = low == e.batch ? 0 : token - e.starts[low];
  return place < e.length ? place : e.length - 1;
}

/// The token at a place of a sequence, if it is there.
__device__ __forceinline__ int64_t token_at(const Embed& e, int64_t sequence,
                                            int64_t place) {
  return place +
         (e.starts != nullptr ? e.starts[sequence] : sequence * e.length);
}

__device__ __forceinline__ bool is_there(const Embed& e, int64_t sequence,
                                         int64_t token) {
  return e.starts != nullptr ? token < e.starts[sequence + 1]
                             : is_real(e, token);
}

// A thread runs of columns of a few tokens.
template <int kRun>
__global__ void __launch_bounds__(kThreads) forward_kernel(Embed e) {
  constexpr int kAhead = 16 / kRun;  // loads under way
  const auto runs = static_cast<unsigned>(e.width / kRun);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kAhead * kThreads;
  // Divisions of 32 bits, of what the block's first thread divides once.
  const int64_t before = first / runs;
  const auto start = static_cast<unsigned>(first - before * runs);
  const auto position0 = static_cast<unsigned>(before % e.length);
  const int64_t all = e.count;
  const RowDropout dropout(e.dropout, ops::DropoutMap::kEmbedding);
  int64_t token[kAhead], id[kAhead];
  unsigned run[kAhead], position[kAhead];
  Run<kRun> a[kAhead], b[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const unsigned inside = start + i * kThreads + threadIdx.x;
    const unsigned row = inside / runs;
    token[i] = before + row;
    run[i] = inside - row * runs;
    position[i] = (position0 + row) % static_cast<unsigned>(e.length);
    id[i] = token[i] < all && is_real(e, token[i]) ? e.ids[token[i]] : -1;
    if (e.starts != nullptr && id[i] >= 0) {
      position[i] = static_cast<unsigned>(place_of(e, token[i]));
    }
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (id[i] < 0) continue;
    a[i].load(e.tokens, id[i] * runs + run[i]);
    b[i].load(e.positions, static_cast<int64_t>(position[i]) * runs + run[i]);
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (token[i] >= all) break;
#pragma unroll
    for (int j = 0; j < kRun; ++j) a[i].x[j] += b[i].x[j];
    a[i].drop(dropout, dropout.row_key(token[i]), static_cast<int>(run[i]));
    a[i].store(e.out, token[i] * runs + run[i], Scalar::kFloat);
  }
}

constexpr int kWarps = 16;   // of a block, backward
constexpr int kChunk = 512;  // tokens looked through at once
// Pairs of columns of a block, one for each lane
constexpr int kColumns = ops::kEmbedColumns / 2;
static_assert(kColumns == 32);

/// What a block of backward has: positions, and pairs of columns.
struct Part {
  int64_t index;  ///< of its positions, among the partials
  int64_t position, positions;
  int pair, pairs;  ///< of the whole row
  __device__ Part(const Embed& e, int64_t span)
      : pairs(static_cast<int>(e.width / 2)) {
    const int groups = (pairs + kColumns - 1) / kColumns;
    index = blockIdx.x / groups;
    position = index * span;
    const int64_t left = e.length - position;
    positions = left < span ? (left > 0 ? left : 0) : span;
    pair = static_cast<int>(blockIdx.x % groups) * kColumns +
           static_cast<int>(threadIdx.x) % 32;
  }
  /// Place i of all sequences' places that are its positions.
  __device__ unsigned sequence(unsigned i) const {
    return i / static_cast<unsigned>(positions);
  }
  __device__ int64_t token(const Embed& e, unsigned i) const {
    return token_at(e, sequence(i),
                    position + i % static_cast<unsigned>(positions));
  }
};

Parts sums_of(const Embed& e, int64_t spans) {
  return {e.partials, spans, embed_part_numbers(e), e.grad_tokens};
}

// A block takes some positions of all sequences. First the tokens: those whose
// id leaves the rest w are warp w's, which adds them, in order, to the block's
// table in shared memory, so that no two write to one place and the order of
// the sums is always the same. Then each warp a position.
__global__ void __launch_bounds__(32 * kWarps)
    backward_kernel(Embed e, int64_t span) {
  constexpr int kAhead = 8;  // loads under way
  extern __shared__ __align__(16) float2 table[];
  __shared__ uint16_t lists[kWarps][kChunk];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Part part(e, span);
  const int row = min(part.pairs, kColumns);  // pairs of the table's rows
  const int numbers = static_cast<int>(e.vocabulary) * row;
  for (int i = threadIdx.x; i < numbers; i += 32 * kWarps) table[i] = {};
  const RowDropout dropout(e.dropout, ops::DropoutMap::kEmbedding);
  const bool there = part.pair < part.pairs;
  const auto kept = [&](int64_t token, float2 grad) -> float2 {
    const float2 keep = dropout.factors(dropout.row_key(token), part.pair);
    return {grad.x * keep.x, grad.y * keep.y};
  };
  const auto load = [&](int64_t token) {
    return there ? load_pair(e.grad, token * part.pairs + part.pair,
                             Scalar::kFloat)
                 : float2{};
  };
  __syncthreads();

  const auto all = static_cast<unsigned>(part.positions * e.batch);
  for (unsigned chunk = 0; chunk < all; chunk += kChunk) {
    const unsigned end = min(chunk + kChunk, all);
    int count = 0;
#pragma unroll 4
    for (unsigned i = chunk; i < end; i += 32) {
      bool mine = false;
      if (i + lane < end) {
        const int64_t token = part.token(e, i + lane);
        mine = is_there(e, part.sequence(i + lane), token) &&
               static_cast<unsigned>(e.ids[token]) % kWarps ==
                   static_cast<unsigned>(warp);
      }
      const unsigned found = __ballot_sync(0xffffffffu, mine);
      if (mine) {
        lists[warp][count + __popc(found & ((1u << lane) - 1))] =
            static_cast<uint16_t>(i + lane - chunk);
      }
      count += __popc(found);
    }
    __syncwarp();
    for (int i = 0; i < count; i += kAhead) {
      float2 grad[kAhead];
      int64_t token[kAhead], id[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        token[j] = part.token(e, chunk + lists[warp][min(i + j, count - 1)]);
        id[j] = e.ids[token[j]];
        grad[j] = load(token[j]);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (i + j >= count || !there) break;
        float2& sum = table[id[j] * row + lane];
        const float2 g = kept(token[j], grad[j]);
        sum.x += g.x;
        sum.y += g.y;
      }
    }
    __syncwarp();
  }

  for (int64_t p = warp; p < part.positions; p += kWarps) {
    float2 sum = {};
    for (int64_t b = 0; b < e.batch; b += kAhead) {
      float2 grad[kAhead];
      int64_t token[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (b + j >= e.batch) {
          token[j] = 0;
          grad[j] = {};
          continue;
        }
        token[j] = token_at(e, b + j, part.position + p);
        grad[j] = is_there(e, b + j, token[j]) ? load(token[j]) : float2{};
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const float2 g = kept(token[j], grad[j]);
        sum.x += g.x;
        sum.y += g.y;
      }
    }
    if (there) {
      store_pair(e.grad_positions, (part.position + p) * part.pairs + part.pair,
                 Scalar::kFloat, sum);
    }
  }

  __syncthreads();
  const int64_t width = embed_part_numbers(e);
  auto* const to = reinterpret_cast<float2*>(e.partials + part.index * width);
  if (there) {
    for (int v = warp; v < e.vocabulary; v += kWarps) {
      to[v * part.pairs + part.pair] = table[v * row + lane];
    }
  }
}

/// How backward is cut into blocks.
struct Plan {
  int64_t span, spans, blocks;
  size_t bytes;
  explicit Plan(const Embed& e) {
    const int64_t pairs = e.width / 2;
    const int64_t groups = (pairs + kColumns - 1) / kColumns;
    bytes =
        static_cast<size_t>(e.vocabulary * std::min<int64_t>(pairs, kColumns)) *
        sizeof(float2);
    const int64_t most = blocks_at_once(backward_kernel, 32 * kWarps, bytes);
    const int64_t wanted =
        std::clamp<int64_t>(most / groups, 1, std::max<int64_t>(e.length, 1));
    span = std::max<int64_t>((e.length + wanted - 1) / wanted, 1);
    spans = std::max<int64_t>((e.length + span - 1) / span, 1);
    blocks = spans * groups;
  }
};

}  // namespace

int64_t embed_parts(const Embed& e) { return Plan(e).spans; }

void embed_forward(const Embed& e, cudaStream_t stream) {
  if (e.count == 0) return;
  const auto launch = [&]<int kRun>() {
    constexpr int64_t kOfBlock = int64_t{16 / kRun} * kThreads;
    const int64_t runs = e.count * e.width / kRun;
    forward_kernel<kRun>
        <<<static_cast<unsigned>((runs + kOfBlock - 1) / kOfBlock), kThreads, 0,
           stream>>>(e);
  };
  if (e.width % 8 == 0) {
    launch.template operator()<8>();
  } else {
    launch.template operator()<2>();
  }
  check_launch("embed");
}

void embed_backward(const Embed& e, cudaStream_t stream) {
  const Plan plan(e);
  launch_and_sum(backward_kernel, plan.blocks, 32 * kWarps, plan.bytes,
                 sums_of(e, plan.spans), stream, "embed_backward", e,
                 plan.span);
}

}  // namespace luna::cuda
