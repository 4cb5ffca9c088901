#include "ops/cuda/embed.h"

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/pairs.cuh"

namespace luna::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ bool is_real(const Embed& e, int64_t token) {
  return e.mask == nullptr || e.mask[token];
}

constexpr int kAhead = 8;  // loads under way

// A thread a pair of columns of 8 tokens.
__global__ void __launch_bounds__(kThreads) forward_kernel(Embed e) {
  const int pairs = static_cast<int>(e.width / 2);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kAhead * kThreads;
  // Divisions of 32 bits, of what the block's first thread divides once.
  const int64_t before = first / pairs;
  const auto start = static_cast<unsigned>(first - before * pairs);
  const int64_t all = e.batch * e.length;
  const RowDropout dropout(e.dropout, ops::DropoutMap::kEmbedding);
  int64_t token[kAhead], id[kAhead];
  int pair[kAhead];
  float2 a[kAhead], b[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const unsigned inside = start + i * kThreads + threadIdx.x;
    token[i] = before + inside / pairs;
    pair[i] = static_cast<int>(inside % pairs);
    id[i] = token[i] < all && is_real(e, token[i]) ? e.ids[token[i]] : -1;
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    a[i] = b[i] = float2{};
    if (id[i] < 0) continue;
    a[i] = load_pair(e.tokens, id[i] * pairs + pair[i], Scalar::kFloat);
    b[i] = load_pair(e.positions, token[i] % e.length * pairs + pair[i],
                     Scalar::kFloat);
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (token[i] >= all) break;
    const float2 keep = dropout.factors(dropout.row_key(token[i]), pair[i]);
    store_pair(e.out, token[i] * pairs + pair[i], Scalar::kFloat,
               {(a[i].x + b[i].x) * keep.x, (a[i].y + b[i].y) * keep.y});
  }
}

constexpr int kColumns = 32, kGroups = kThreads / kColumns;

// A block a position and 32 pairs of columns: each of 8 groups adds up every
// 8th sequence of the batch, then the groups in order.
__global__ void __launch_bounds__(kThreads) positions_kernel(Embed e) {
  __shared__ float2 shared[kGroups][kColumns];
  const int pairs = static_cast<int>(e.width / 2);
  const int64_t position = blockIdx.x;
  const int group = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  const int pair = static_cast<int>(blockIdx.y) * kColumns + column;
  float2 sum = {};
  if (pair < pairs) {
    const RowDropout dropout(e.dropout, ops::DropoutMap::kEmbedding);
#pragma unroll 4
    for (int64_t b = group; b < e.batch; b += kGroups) {
      const int64_t token = b * e.length + position;
      if (!is_real(e, token)) continue;
      const float2 g = load_pair(e.grad, token * pairs + pair, Scalar::kFloat);
      const float2 keep = dropout.factors(dropout.row_key(token), pair);
      sum.x += g.x * keep.x;
      sum.y += g.y * keep.y;
    }
  }
  shared[group][column] = sum;
  __syncthreads();
  if (group != 0 || pair >= pairs) return;
  for (int other = 1; other < kGroups; ++other) {
    sum.x += shared[other][column].x;
    sum.y += shared[other][column].y;
  }
  store_pair(e.grad_positions, position * pairs + pair, Scalar::kFloat, sum);
}

// A block walks a stretch of tokens; a thread owns a pair of columns of the
// block's table in shared memory, so that no two write to one place and the
// order of the sums is always the same. The next tokens are on their way
// while it adds.
__global__ void tokens_kernel(Embed e, int64_t stretch) {
  extern __shared__ float2 table[];
  const int pairs = blockDim.x, pair = threadIdx.x;
  for (int64_t v = 0; v < e.vocabulary; ++v) table[v * pairs + pair] = {};
  const RowDropout dropout(e.dropout, ops::DropoutMap::kEmbedding);
  const int64_t first = blockIdx.x * stretch;
  const int64_t all = e.batch * e.length;
  const int64_t last = first + stretch < all ? first + stretch : all;
  float2 g[2][kAhead];
  int64_t id[2][kAhead];
  const auto fetch = [&](int64_t from, float2(&grad)[kAhead],
                         int64_t(&row)[kAhead]) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t token = from + j;
      const bool real = token < last && is_real(e, token);
      row[j] = real ? e.ids[token] : -1;
      grad[j] = real ? load_pair(e.grad, token * pairs + pair, Scalar::kFloat)
                     : float2{};
    }
  };
  const auto add = [&](int64_t from, const float2(&grad)[kAhead],
                       const int64_t(&row)[kAhead]) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (row[j] < 0) continue;
      const float2 keep = dropout.factors(dropout.row_key(from + j), pair);
      float2& sum = table[row[j] * pairs + pair];
      sum.x += grad[j].x * keep.x;
      sum.y += grad[j].y * keep.y;
    }
  };
  fetch(first, g[0], id[0]);
  for (int64_t from = first; from < last; from += 2 * kAhead) {
    fetch(from + kAhead, g[1], id[1]);
    add(from, g[0], id[0]);
    fetch(from + 2 * kAhead, g[0], id[0]);
    add(from + kAhead, g[1], id[1]);
  }
  float2* const out =
      reinterpret_cast<float2*>(e.partials) + blockIdx.x * e.vocabulary * pairs;
  for (int64_t v = 0; v < e.vocabulary; ++v) {
    out[v * pairs + pair] = table[v * pairs + pair];
  }
}

}  // namespace

int64_t embed_blocks(const Embed& e) {
  // As many as an H200 holds at once, but none for a handful of tokens.
  return std::clamp<int64_t>(e.batch * e.length / 64, 1, 396);
}

void embed_forward(const Embed& e, cudaStream_t stream) {
  if (e.batch * e.length == 0) return;
  constexpr int64_t kOfBlock = int64_t{kAhead} * kThreads;
  const int64_t pairs = e.batch * e.length * e.width / 2;
  forward_kernel<<<static_cast<unsigned>((pairs + kOfBlock - 1) / kOfBlock),
                   kThreads, 0, stream>>>(e);
  check_launch("embed");
}

void embed_backward(const Embed& e, cudaStream_t stream) {
  if (e.length > 0) {
    const auto columns =
        static_cast<unsigned>((e.width / 2 + kColumns - 1) / kColumns);
    positions_kernel<<<dim3(static_cast<unsigned>(e.length), columns), kThreads,
                       0, stream>>>(e);
    check_launch("embed_backward");
  }
  const int64_t blocks = embed_blocks(e);
  const int64_t stretch = (e.batch * e.length + blocks - 1) / blocks;
  const auto bytes = static_cast<int>(e.vocabulary * e.width * sizeof(float));
  cudaFuncSetAttribute(tokens_kernel,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  tokens_kernel<<<static_cast<unsigned>(blocks),
                  static_cast<unsigned>(e.width / 2), bytes, stream>>>(e,
                                                                       stretch);
  check_launch("embed_backward");
}

}  // namespace luna::cuda
