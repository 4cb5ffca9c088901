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

// A thread a pair of columns of a token.
__global__ void forward_kernel(Embed e) {
  const int pairs = static_cast<int>(e.width / 2);
  const int64_t index =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  // A division of 32 bits, of what the block's first thread divides once.
  const int64_t before = static_cast<int64_t>(blockIdx.x) * kThreads / pairs;
  const auto inside = static_cast<unsigned>(index - before * pairs);
  const int64_t token = before + inside / pairs;
  if (token >= e.batch * e.length) return;
  const int pair = static_cast<int>(inside % pairs);
  float2 out = {};
  if (is_real(e, token)) {
    const RowDropout dropout(e.seed, e.dropout_p, ops::DropoutMap::kEmbedding);
    const float2 keep = dropout.factors(dropout.row_key(token), pair);
    const float2 a =
        load_pair(e.tokens, e.ids[token] * pairs + pair, Scalar::kFloat);
    const float2 b =
        load_pair(e.positions, token % e.length * pairs + pair, Scalar::kFloat);
    out = {(a.x + b.x) * keep.x, (a.y + b.y) * keep.y};
  }
  store_pair(e.out, index, Scalar::kFloat, out);
}

// A thread a pair of columns of a position: sums over the batch, in order.
__global__ void positions_kernel(Embed e) {
  const int pairs = static_cast<int>(e.width / 2);
  const int64_t index =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t position = index / pairs;
  if (position >= e.length) return;
  const int pair = static_cast<int>(index % pairs);
  const RowDropout dropout(e.seed, e.dropout_p, ops::DropoutMap::kEmbedding);
  float2 sum = {};
#pragma unroll 4
  for (int64_t b = 0; b < e.batch; ++b) {
    const int64_t token = b * e.length + position;
    if (!is_real(e, token)) continue;
    const float2 g = load_pair(e.grad, token * pairs + pair, Scalar::kFloat);
    const float2 keep = dropout.factors(dropout.row_key(token), pair);
    sum.x += g.x * keep.x;
    sum.y += g.y * keep.y;
  }
  store_pair(e.grad_positions, index, Scalar::kFloat, sum);
}

// A block walks a stretch of tokens; a thread owns a pair of columns of the
// block's table in shared memory, so that no two write to one place and the
// order of the sums is always the same.
__global__ void tokens_kernel(Embed e, int64_t stretch) {
  extern __shared__ float2 table[];
  constexpr int kAhead = 8;
  const int pairs = blockDim.x, pair = threadIdx.x;
  for (int64_t v = 0; v < e.vocabulary; ++v) table[v * pairs + pair] = {};
  const RowDropout dropout(e.seed, e.dropout_p, ops::DropoutMap::kEmbedding);
  const int64_t first = blockIdx.x * stretch;
  const int64_t all = e.batch * e.length;
  const int64_t last = first + stretch < all ? first + stretch : all;
  for (int64_t from = first; from < last; from += kAhead) {
    float2 g[kAhead];
    int64_t id[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t token = from + j;
      const bool real = token < last && is_real(e, token);
      id[j] = real ? e.ids[token] : -1;
      g[j] = real ? load_pair(e.grad, token * pairs + pair, Scalar::kFloat)
                  : float2{};
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (id[j] < 0) continue;
      const float2 keep = dropout.factors(dropout.row_key(from + j), pair);
      float2& sum = table[id[j] * pairs + pair];
      sum.x += g[j].x * keep.x;
      sum.y += g[j].y * keep.y;
    }
  }
  float2* const out =
      reinterpret_cast<float2*>(e.partials) + blockIdx.x * e.vocabulary * pairs;
  for (int64_t v = 0; v < e.vocabulary; ++v) {
    out[v * pairs + pair] = table[v * pairs + pair];
  }
}

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

int64_t embed_blocks(const Embed& e) {
  // As many as an H200 holds at once, but none for a handful of tokens.
  return std::clamp<int64_t>(e.batch * e.length / 64, 1, 396);
}

void embed_forward(const Embed& e, cudaStream_t stream) {
  if (e.batch * e.length == 0) return;
  forward_kernel<<<blocks_for(e.batch * e.length * e.width / 2), kThreads, 0,
                   stream>>>(e);
  check_launch("embed");
}

void embed_backward(const Embed& e, cudaStream_t stream) {
  if (e.length > 0) {
    positions_kernel<<<blocks_for(e.length * e.width / 2), kThreads, 0,
                       stream>>>(e);
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
