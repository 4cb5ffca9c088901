// Unpack: queries are tokens, a tile a warp; all slots lie in shared memory.

#include <algorithm>

#include "ops/cuda/softmax_mma_queries.cuh"
#include "ops/cuda/softmax_wgmma.h"

namespace luna::cuda {
namespace softmax_mma {
namespace {

using T = __nv_bfloat16;

template <int D, int M, int N>
struct UnpackShape {
  static constexpr int kTokens = 16 * M;
  static constexpr int kStages = N == 2 ? 4 : 2;
  static constexpr int kTileBytes = kTokens * Tile<D>::kRowBytes;
  static size_t memory(int64_t slots) {
    return size_t{kWarps} * kStages * kTileBytes +
           2 * padded_slots(slots) * Tile<D>::kRowBytes;
  }
};

template <typename T, int D, int M, int N, bool kGeneral>
__global__ void __launch_bounds__(kBlock, M == 1 ? 2 : 1)
    unpack_kernel(SoftmaxForward<float> a) {
  using Shape = UnpackShape<D, M, N>;
  extern __shared__ __align__(128) unsigned char memory[];
  const SoftmaxProblem<float>& p = a.problem;
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.tokens, number, piece)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const int64_t begin = piece.begin + piece.offset;
  const T* tokens = row_pointer<T>(p.query, piece.batch, head, begin);
  T* out = row_pointer<T>(a.out, piece.batch, head, begin);
  const float* weights = p.weight.data == nullptr
                             ? nullptr
                             : p.weight.data + piece.sequence * p.weight.batch +
                                   head * p.weight.head;
  const Keep<float> keep(p.dropout, piece.sequence, head);
  const int slots = static_cast<int>(p.slots);
  const int padded = (slots + 8 * N - 1) / (8 * N) * (8 * N);
  const int depth = static_cast<int>(p.depth),
            width = static_cast<int>(p.width);
  const uint32_t stages =
      mma::shared_address(memory) + warp * Shape::kStages * Shape::kTileBytes;
  const uint32_t keys =
      mma::shared_address(memory) + kWarps * Shape::kStages * Shape::kTileBytes;
  const uint32_t values = keys + padded * Tile<D>::kRowBytes;
  Tile<D>::template copy<T, kBlock>(
      keys, row_pointer<T>(p.key, piece.sequence, head, 0), p.key.row, padded,
      slots, depth, threadIdx.x);
  Tile<D>::template copy<T, kBlock>(
      values, row_pointer<T>(p.value, piece.sequence, head, 0), p.value.row,
      padded, slots, width, threadIdx.x);
  mma::commit_copies();
  const int count = static_cast<int>(piece.count);
  const int steps = (count + Shape::kTokens - 1) / Shape::kTokens;
  const auto start = [&](int step, int slot) {
    if (step < steps) {
      const int first = step * Shape::kTokens;
      Tile<D>::template copy<T, 32>(stages + slot * Shape::kTileBytes,
                                    tokens + first * p.query.row, p.query.row,
                                    Shape::kTokens, count - first, depth, lane);
    }
    mma::commit_copies();
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) start(warp + i * kWarps, i);
  mma::wait_copies<Shape::kStages - 1>();
  __syncthreads();
  const float factor = p.scale * kLog2E;
  Queries<T, D, M> queries;
  int slot = 0;
  for (int step = warp; step < steps; step += kWarps) {
    __syncwarp();
    start(step + (Shape::kStages - 1) * kWarps,
          (slot + Shape::kStages - 1) % Shape::kStages);
    mma::wait_copies<Shape::kStages - 1>();
    __syncwarp();
    const uint32_t stage = stages + slot * Shape::kTileBytes;
    const int first = step * Shape::kTokens;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        Tile<D>::load(queries.x[m][k], stage, 16 * m, 2 * k);
      }
    }
    queries.clear();
#pragma unroll 1
    for (int row = 0; row < slots; row += 8 * N) {
      queries.template see<N, kGeneral>(
          keys, values, row, slots - row, factor,
          [&](int key) {
            return weights == nullptr ? 1.f : weights[row + key];
          },
          [&](int query, int key) {
            return keep(piece.offset + first + query, row + key);
          });
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float inverse = inverse_of(mma::row_sum(queries.sum[m][h]));
#pragma unroll
        for (int c = 0; c < D / 8; ++c) {
          Tile<D>::put(stage, 16 * m + g + 8 * h, c,
                       mma::pack<T>(queries.out[m][c][2 * h] * inverse,
                                    queries.out[m][c][2 * h + 1] * inverse));
        }
      }
    }
    __syncwarp();
    Tile<D>::template store<T>(stage, out + first * a.out.row, a.out.row,
                               Shape::kTokens, count - first, width);
    slot = (slot + 1) % Shape::kStages;
  }
}

template <typename T, int D, int M, int N>
void launch_unpack(const SoftmaxForward<float>& a, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = a.problem;
  const bool general = p.weight.data != nullptr || p.dropout.seed != nullptr;
  launch(general ? unpack_kernel<T, D, M, N, true>
                 : unpack_kernel<T, D, M, N, false>,
         static_cast<unsigned>(p.tokens.bound * p.heads),
         UnpackShape<D, M, N>::memory(p.slots), a, stream,
         "softmax_mma_forward, unpack");
}

}  // namespace

template <int D>
void unpack_forward(const SoftmaxForward<float>& a, cudaStream_t stream) {
  if (a.problem.tokens.bound == 0) return;
  if (a.problem.slots <= 16) {
    launch_unpack<T, D, 1, 2>(a, stream);
  } else if (D <= 64 && a.problem.slots > 64) {
    launch_unpack<T, D, D == 128 ? 1 : 2, 4>(a, stream);
  } else {
    launch_unpack<T, D, 1, 4>(a, stream);
  }
}
template void unpack_forward<32>(const SoftmaxForward<float>&, cudaStream_t);
template void unpack_forward<64>(const SoftmaxForward<float>&, cudaStream_t);
template void unpack_forward<128>(const SoftmaxForward<float>&, cudaStream_t);

size_t forward_memory(const SoftmaxShape& s) {
  switch (padded(std::max(s.depth, s.width))) {
    case 32:
      return UnpackShape<32, 2, 4>::memory(s.slots);
    case 64:
      return UnpackShape<64, 2, 4>::memory(s.slots);
    default:
      return UnpackShape<128, 1, 4>::memory(s.slots);
  }
}

}  // namespace softmax_mma

void softmax_mma_forward(const SoftmaxForward<float>& a, cudaStream_t stream) {
  using namespace softmax_mma;
  const SoftmaxProblem<float>& p = a.problem;
  if (p.heads == 0 || p.tokens.sequences == 0) return;
  if (softmax_wgmma_fits(p)) {
    softmax_wgmma_forward(a, stream);
    if (a.parts != nullptr) merge_parts(a, stream);
    return;
  }
  switch (padded(std::max(p.depth, p.width))) {
    case 32:
      return p.pack ? pack_forward<32>(a, stream)
                    : unpack_forward<32>(a, stream);
    case 64:
      return p.pack ? pack_forward<64>(a, stream)
                    : unpack_forward<64>(a, stream);
    default:
      return p.pack ? pack_forward<128>(a, stream)
                    : unpack_forward<128>(a, stream);
  }
}

}  // namespace luna::cuda
