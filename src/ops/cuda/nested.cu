#include "ops/cuda/nested.h"

#include "ops/cuda/dropout.cuh"
#include "ops/cuda/tile.cuh"

namespace luna::cuda {
namespace {

__device__ __forceinline__ float power(float x) { return exp2f(x); }
__device__ __forceinline__ double power(double x) { return exp2(x); }
__device__ __forceinline__ float log_1p(float x) { return log1pf(x); }
__device__ __forceinline__ double log_1p(double x) { return log1p(x); }
constexpr double kLog2E = 1.44269504088896340736;

template <typename T>
__device__ T omega(bool elu, T x, T& slope) {
  const bool positive = x > T(0);
  if (elu) {
    const T e = power((positive ? T(0) : x) * static_cast<T>(kLog2E));
    slope = positive ? T(1) : e;
    return positive ? x + T(1) : e;
  }
  // log2(1 + 2^x) = max(x, 0) + log2(1 + 2^-|x|): nothing can overflow.
  const T z = power(positive ? -x : x);
  slope = (positive ? T(1) : z) / (T(1) + z);
  return log_1p(z) * static_cast<T>(kLog2E) + (positive ? x : T(0));
}

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
    T top = T(-1e38);
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
    const T inverse =
        sum == T(0) ? T(0) : T(1) / (sum > T(1e-37) ? sum : T(1e-37));
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

template <typename T>
__global__ void step_kernel(NestedStep<T> p) {
  extern __shared__ double2 memory[];
  T* a = reinterpret_cast<T*>(memory);
  T* w = a + p.slots;
  T* sums = w + p.slots;  // [32]
  const int64_t head = blockIdx.x % p.heads, batch = blockIdx.x / p.heads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kWarps = kThreads / 32;
  const T inverse = T(1) / static_cast<T>(p.count[batch] + 1);
  const int64_t q = row_at(p.query, batch, head, 0);
  const int64_t pk = row_at(p.pack_key, batch, head, 0);
  const int64_t k = row_at(p.key, batch, head, 0);
  const int64_t v = row_at(p.value, batch, head, 0);
  for (int64_t j = warp; j < p.slots; j += kWarps) {
    const int64_t row = row_at(p.packed_query, batch, head, j);
    T dot = 0;
    for (int64_t i = lane; i < p.depth; i += 32) {
      dot += load<T>(p.packed_query.data, row + i, p.packed_query.type) *
             load<T>(p.pack_key.data, pk + i, p.pack_key.type);
    }
    dot = warp_sum(dot);
    T slope;
    if (lane == 0) a[j] = omega(p.elu, dot * p.scale, slope);
  }
  __syncthreads();
  T* key_state = static_cast<T*>(p.key_state.data);
  T* value_state = static_cast<T*>(p.value_state.data);
  const T factor = p.scale * static_cast<T>(kLog2E) * inverse;
  for (int64_t j = threadIdx.x; j < p.slots; j += kThreads) {
    T u = 0;
    for (int64_t i = 0; i < p.depth; ++i) {
      const int64_t at = row_at(p.key_state, batch, head, i) + j;
      const T s = key_state[at] + load<T>(p.key.data, k + i, p.key.type) * a[j];
      key_state[at] = s;
      u += factor * load<T>(p.query.data, q + i, p.query.type) * s;
    }
    w[j] = u;
  }
  __syncthreads();
  const bool* mask = p.mask == nullptr ? nullptr : p.mask + batch * p.slots;
  if (warp == 0) {
    T top = T(-1e38);
    for (int64_t j = lane; j < p.slots; j += 32) {
      if ((mask == nullptr || mask[j]) && w[j] > top) top = w[j];
    }
    for (int step = 16; step > 0; step /= 2) {
      const T other = __shfl_xor_sync(0xffffffffu, top, step);
      if (other > top) top = other;
    }
    T sum = 0;
    for (int64_t j = lane; j < p.slots; j += 32) {
      w[j] = mask == nullptr || mask[j] ? power(w[j] - top) : T(0);
      sum += w[j];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      sums[0] = sum == T(0) ? T(0) : T(1) / (sum > T(1e-37) ? sum : T(1e-37));
    }
  }
  __syncthreads();
  const int64_t out = row_at(p.out, batch, head, 0);
  for (int64_t n = threadIdx.x; n < p.width; n += kThreads) {
    const T x = load<T>(p.value.data, v + n, p.value.type);
    T total = 0;
    for (int64_t j = 0; j < p.slots; ++j) {
      const int64_t at = row_at(p.value_state, batch, head, j) + n;
      const T s = value_state[at] + a[j] * x;
      value_state[at] = s;
      total += w[j] * s;
    }
    store<T>(p.out.data, out + n, p.out.type, total * sums[0] * inverse);
  }
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

template <typename T>
void nested_step(const NestedStep<T>& p, cudaStream_t stream) {
  if (p.batch * p.heads == 0) return;
  const auto shared = static_cast<size_t>((2 * p.slots + 32) * sizeof(T));
  cudaFuncSetAttribute(step_kernel<T>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(shared));
  step_kernel<<<static_cast<unsigned>(p.batch * p.heads), kThreads, shared,
                stream>>>(p);
  check_launch("nested_causal_attention_step");
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
                                    cudaStream_t);                           \
  template void nested_step<T>(const NestedStep<T>&, cudaStream_t);
LUNA_INSTANTIATE(float)
LUNA_INSTANTIATE(double)
#undef LUNA_INSTANTIATE

}  // namespace luna::cuda
