#include "ops/cuda/nested.h"

#include "ops/cuda/dropout.cuh"
#include "ops/cuda/omega.cuh"
#include "ops/cuda/tile.cuh"

namespace luna::cuda {
namespace {

template <typename T>
__device__ T position(const NestedMaps<T>& p, const Piece& tile, int64_t t) {
  const int64_t before = p.count == nullptr ? 0 : p.count[tile.sequence];
  return static_cast<T>(before + t + 1);
}

template <typename T>
__global__ void positions_kernel(NestedMaps<T> p, T* inverse) {
  Piece tile;
  if (!locate(p.tiles, blockIdx.x, tile)) return;
  if (threadIdx.x >= tile.count) return;
  const int64_t t = tile.offset + threadIdx.x;
  inverse[tile.batch * p.length + tile.begin + t] = T(1) / position(p, tile, t);
}

__global__ void counts_kernel(Cut tiles, const int64_t* count,
                              int64_t* new_count) {
  const int64_t s = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (s >= tiles.sequences) return;
  Piece all;
  sequence_of(tiles, s, all);
  new_count[s] = (count == nullptr ? 0 : count[s]) + all.length;
}

template <typename T>
__global__ void activate_kernel(NestedMaps<T> p, T* a, T* slope) {
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece tile;
  if (!locate(p.tiles, number, tile)) return;
  const Keep<T> keep(p.pack_dropout, tile.sequence, head);
  const int64_t before = p.count == nullptr ? 0 : p.count[tile.sequence];
  const int64_t row0 =
      (tile.batch * p.heads + head) * p.length + tile.begin + tile.offset;
  for (int64_t e = threadIdx.x; e < tile.count * p.slots; e += kThreads) {
    const int64_t m = e / p.slots, slot = e % p.slots;
    const int64_t at = row0 * p.slots + e;
    T derivative;
    const T x = omega(p.elu, a[at], derivative);
    const T kept = keep(before + tile.offset + m, slot);
    a[at] = x * kept;
    if (slope != nullptr) slope[at] = derivative * kept;
  }
}

// A warp a row: p = softmax of the row's live slots.
template <typename T, bool kBackward>
__global__ void softmax_kernel(NestedMaps<T> p, T* u, T* w) {
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece tile;
  if (!locate(p.tiles, number, tile)) return;
  const Keep<T> keep(p.unpack_dropout, tile.sequence, head);
  const int64_t before = p.count == nullptr ? 0 : p.count[tile.sequence];
  const bool* mask =
      p.mask == nullptr ? nullptr : p.mask + tile.sequence * p.slots;
  const int lane = threadIdx.x % 32;
  for (int64_t m = threadIdx.x / 32; m < tile.count; m += kThreads / 32) {
    const int64_t t = tile.offset + m;
    const int64_t at =
        ((tile.batch * p.heads + head) * p.length + tile.begin + t) * p.slots;
    const T gain = p.scale / position(p, tile, t);
    const T factor = gain * static_cast<T>(kLog2E);
    T top = lowest<T>();
    for (int64_t j = lane; j < p.slots; j += 32) {
      const T x = rounded_product(u[at + j], factor);
      if ((mask == nullptr || mask[j]) && x > top) top = x;
    }
    for (int step = 16; step > 0; step /= 2) {
      const T other = __shfl_xor_sync(0xffffffffu, top, step);
      if (other > top) top = other;
    }
    T sum = 0;
    for (int64_t j = lane; j < p.slots; j += 32) {
      if (mask == nullptr || mask[j]) {
        sum += power(rounded_product(u[at + j], factor) - top);
      }
    }
    sum = warp_sum(sum);
    const T inverse = inverse_of(sum);
    const auto probability = [&](int64_t j) {
      return mask == nullptr || mask[j]
                 ? power(rounded_product(u[at + j], factor) - top) * inverse
                 : T(0);
    };
    if (!kBackward) {
      for (int64_t j = lane; j < p.slots; j += 32) {
        w[at + j] = probability(j) * keep(before + t, j);
      }
      continue;
    }
    T delta = 0;
    for (int64_t j = lane; j < p.slots; j += 32) {
      delta += probability(j) * w[at + j] * keep(before + t, j);
    }
    delta = warp_sum(delta);
    for (int64_t j = lane; j < p.slots; j += 32) {
      const T g = w[at + j] * keep(before + t, j);
      u[at + j] = gain * probability(j) * (g - delta);
    }
  }
}

template <typename T>
__global__ void multiply_kernel(int64_t numbers, T* a, const T* b,
                                const T* slope) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < numbers) a[i] = (a[i] + b[i]) * slope[i];
}

}  // namespace

template <typename T>
void positions(const NestedMaps<T>& p, T* inverse, int64_t* new_count,
               cudaStream_t stream) {
  if (inverse != nullptr && p.tiles.bound > 0) {
    positions_kernel<<<static_cast<unsigned>(p.tiles.bound), kTile, 0,
                       stream>>>(p, inverse);
    check_launch("positions");
  }
  if (new_count == nullptr || p.tiles.sequences == 0) return;
  counts_kernel<<<static_cast<unsigned>(
                      blocks_for(p.tiles.sequences, kThreads)),
                  kThreads, 0, stream>>>(p.tiles, p.count, new_count);
  check_launch("counts");
}

template <typename T>
void activate(const NestedMaps<T>& p, T* a, T* slope, cudaStream_t stream) {
  if (p.tiles.bound * p.heads * p.slots == 0) return;
  activate_kernel<<<static_cast<unsigned>(p.tiles.bound * p.heads), kThreads, 0,
                    stream>>>(p, a, slope);
  check_launch("activate");
}

template <typename T>
void slot_softmax(const NestedMaps<T>& p, const T* u, T* w,
                  cudaStream_t stream) {
  if (p.tiles.bound * p.heads * p.slots == 0) return;
  softmax_kernel<T, false>
      <<<static_cast<unsigned>(p.tiles.bound * p.heads), kThreads, 0, stream>>>(
          p, const_cast<T*>(u), w);
  check_launch("slot_softmax");
}

template <typename T>
void slot_softmax_backward(const NestedMaps<T>& p, T* u, const T* dw,
                           cudaStream_t stream) {
  if (p.tiles.bound * p.heads * p.slots == 0) return;
  softmax_kernel<T, true>
      <<<static_cast<unsigned>(p.tiles.bound * p.heads), kThreads, 0, stream>>>(
          p, u, const_cast<T*>(dw));
  check_launch("slot_softmax_backward");
}

template <typename T>
void add_and_multiply(int64_t numbers, T* a, const T* b, const T* slope,
                      cudaStream_t stream) {
  if (numbers == 0) return;
  multiply_kernel<<<static_cast<unsigned>(blocks_for(numbers, kThreads)),
                    kThreads, 0, stream>>>(numbers, a, b, slope);
  check_launch("add_and_multiply");
}

#define LUNA_INSTANTIATE(T)                                                  \
  template void positions<T>(const NestedMaps<T>&, T*, int64_t*,             \
                             cudaStream_t);                                  \
  template void activate<T>(const NestedMaps<T>&, T*, T*, cudaStream_t);     \
  template void slot_softmax<T>(const NestedMaps<T>&, const T*, T*,          \
                                cudaStream_t);                               \
  template void slot_softmax_backward<T>(const NestedMaps<T>&, T*, const T*, \
                                         cudaStream_t);                      \
  template void add_and_multiply<T>(int64_t, T*, const T*, const T*,         \
                                    cudaStream_t);
LUNA_INSTANTIATE(float)
LUNA_INSTANTIATE(double)
#undef LUNA_INSTANTIATE

}  // namespace luna::cuda
