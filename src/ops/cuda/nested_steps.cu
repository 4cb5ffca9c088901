// One token for each sequence and head, a block each: nested_causal_attention's
// step, and unpack_attention of a single token. Nothing is large here, so that
// what counts is how often a load has to wait for another: what a block needs
// of a state first is on its way before the token is looked at.

#include "ops/cuda/launch.h"
#include "ops/cuda/nested.h"
#include "ops/cuda/omega.cuh"
#include "ops/cuda/powers.cuh"
#include "ops/cuda/softmax.h"
#include "ops/cuda/tile.cuh"

namespace luna::cuda {
namespace {

constexpr int kAhead = 8;  // numbers of a state that a thread loads at once

/// A block's threads as columns of a matrix, side by side, and groups that
/// share the rows: group g has rows g, g + groups, ...
struct Columns {
  __device__ explicit Columns(int64_t wanted) {
    while (count < kThreads && count < wanted) count *= 2;
    column = static_cast<int>(threadIdx.x) % count;
    group = static_cast<int>(threadIdx.x) / count;
    groups = kThreads / count;
  }
  int count = 8, column, group, groups;
};

/// The numbers of a matrix [rows, columns] in memory that a thread meets: its
/// rows of column after column, kAhead of them at once.
template <typename T>
struct Walk {
  __device__ Walk(const Rows& matrix, int64_t batch, int64_t head, int64_t rows,
                  int64_t columns)
      : matrix(matrix),
        begin(row_at(matrix, batch, head, 0)),
        rows(rows),
        columns(columns),
        at(columns) {
    fetch(0, 0);
  }
  __device__ int64_t place(int64_t row, int64_t column) const {
    return begin + row * matrix.row + column;
  }
  __device__ void fetch(int64_t first_row, int64_t first_column) {
    const int64_t column = first_column + at.column;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t row = first_row + at.group + i * at.groups;
      ahead[i] = row < rows && column < columns
                     ? load<T>(matrix.data, place(row, column), matrix.type)
                     : T(0);
    }
  }
  /// Sums of visit(row, column, number) over rows; each column's to
  /// take(column, sum), by one thread. `parts` [kThreads] is shared. A barrier
  /// of the block.
  template <typename Visit, typename Take>
  __device__ void sums(T* parts, const Visit& visit, const Take& take) {
    for (int64_t c = 0; c < columns; c += at.count) {
      const int64_t column = c + at.column;
      T sum = 0;
      for (int64_t r = 0; r < rows; r += kAhead * at.groups) {
        if (c > 0 || r > 0) fetch(r, c);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int64_t row = r + at.group + i * at.groups;
          if (row < rows && column < columns) {
            sum += visit(row, column, ahead[i]);
          }
        }
      }
      parts[threadIdx.x] = sum;
      __syncthreads();
      if (at.group == 0 && column < columns) {
        for (int g = 1; g < at.groups; ++g) {
          sum += parts[g * at.count + at.column];
        }
        take(column, sum);
      }
      __syncthreads();
    }
  }

  const Rows& matrix;
  int64_t begin, rows, columns;
  Columns at;
  T ahead[kAhead];
};

/// take(slot, row . slot's row of `slots`), by one thread each; eight share a
/// slot.
template <typename T, typename Take>
__device__ void slot_dots(const Rows& row, int64_t row_begin, const Rows& slots,
                          int64_t slots_begin, int64_t count, int64_t depth,
                          const Take& take) {
  const int share = static_cast<int>(threadIdx.x) % 8;
  for (int64_t first = 0; first < count; first += kThreads / 8) {
    const int64_t slot = first + threadIdx.x / 8;
    T dot = 0;
    if (slot < count) {
      const int64_t begin = slots_begin + slot * slots.row;
#pragma unroll 8
      for (int64_t i = share; i < depth; i += 8) {
        dot += load<T>(slots.data, begin + i, slots.type) *
               load<T>(row.data, row_begin + i, row.type);
      }
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
      dot += __shfl_xor_sync(0xffffffffu, dot, step);
    }
    if (slot < count && share == 0) take(slot, dot);
  }
}

/// By the first warp: scores to the base 2 become weights(slot) 2^(score -
/// top); the return is 1 over their sum, 0 where all weights are 0.
template <typename T, typename Weight>
__device__ T softmax_of(T* scores, int64_t count, const Weight& weight) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  T top = lowest<T>();
  for (int64_t j = lane; j < count; j += 32) {
    if (weight(j) > T(0) && scores[j] > top) top = scores[j];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(0xffffffffu, top, step);
    if (other > top) top = other;
  }
  T sum = 0;
  for (int64_t j = lane; j < count; j += 32) {
    const T w = weight(j);
    scores[j] = w > T(0) ? w * power(scores[j] - top) : T(0);
    sum += scores[j];
  }
  sum = warp_sum(sum);
  return inverse_of(sum);
}

/// The blocks of a sequence's heads read its count of tokens, then it grows by
/// one. Its upper half, 0 between launches, counts the blocks that have read.
__device__ __forceinline__ int64_t tokens_in(int64_t count) {
  return count & 0xffffffff;
}
__device__ void count_token(int64_t* count, int64_t heads) {
  constexpr unsigned long long kOne = 1ull << 32;
  auto* at = reinterpret_cast<unsigned long long*>(count);
  __threadfence();  // read before it is counted
  const auto readers = static_cast<int64_t>(atomicAdd(at, kOne) >> 32) + 1;
  if (readers == heads) atomicAdd(at, 1 - heads * kOne);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    step_kernel(const __grid_constant__ NestedStep<T> p) {
  extern __shared__ double2 memory[];
  T* a = reinterpret_cast<T*>(memory);
  T* w = a + p.slots;
  T* query = w + p.slots;
  T* key = query + p.depth;
  T* value = key + p.depth;
  __shared__ T parts[kThreads];
  __shared__ T inverse_sum;
  const int64_t head = blockIdx.x % p.heads, batch = blockIdx.x / p.heads;
  wait_for_previous_launch();
  allow_next_launch();
  Walk<T> keys(p.key_state, batch, head, p.depth, p.slots);
  Walk<T> values(p.value_state, batch, head, p.slots, p.width);
  const T inverse = T(1) / static_cast<T>(tokens_in(p.count[batch]) + 1);
  const auto keep = [&](T* to, const Rows& rows, int64_t count, T factor) {
    const int64_t begin = row_at(rows, batch, head, 0);
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      to[i] = factor * load<T>(rows.data, begin + i, rows.type);
    }
  };
  keep(query, p.query, p.depth, p.scale * static_cast<T>(kLog2E) * inverse);
  keep(key, p.key, p.depth, T(1));
  keep(value, p.value, p.width, T(1));
  slot_dots<T>(p.pack_key, row_at(p.pack_key, batch, head, 0), p.packed_query,
               row_at(p.packed_query, batch, head, 0), p.slots, p.depth,
               [&](int64_t slot, T dot) {
                 T slope;
                 a[slot] = omega(p.elu, dot * p.scale, slope);
               });
  __syncthreads();
  if (threadIdx.x == 0) count_token(p.count + batch, p.heads);
  T* key_state = static_cast<T*>(p.key_state.data);
  keys.sums(
      parts,
      [&](int64_t i, int64_t slot, T before) {
        const T sum = before + key[i] * a[slot];
        key_state[keys.place(i, slot)] = sum;
        return query[i] * sum;
      },
      [&](int64_t slot, T score) { w[slot] = score; });
  if (threadIdx.x < 32) {
    const bool* mask = p.mask == nullptr ? nullptr : p.mask + batch * p.slots;
    const T one_over_sum = softmax_of(w, p.slots, [&](int64_t slot) {
      return mask == nullptr || mask[slot] ? T(1) : T(0);
    });
    if (threadIdx.x == 0) inverse_sum = one_over_sum;
  }
  __syncthreads();
  T* value_state = static_cast<T*>(p.value_state.data);
  const int64_t out = row_at(p.out, batch, head, 0);
  values.sums(
      parts,
      [&](int64_t slot, int64_t n, T before) {
        const T sum = before + a[slot] * value[n];
        value_state[values.place(slot, n)] = sum;
        return w[slot] * sum;
      },
      [&](int64_t n, T sum) {
        store<T>(p.out.data, out + n, p.out.type, sum * inverse_sum * inverse);
      });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(const __grid_constant__ SoftmaxForward<T> a) {
  const SoftmaxProblem<T>& p = a.problem;
  extern __shared__ double2 memory[];
  T* w = reinterpret_cast<T*>(memory);
  __shared__ T parts[kThreads];
  __shared__ T inverse_sum;
  const int64_t head = blockIdx.x % p.heads, batch = blockIdx.x / p.heads;
  wait_for_previous_launch();
  allow_next_launch();
  Walk<T> values(p.value, batch, head, p.slots, p.width);
  const T factor = p.scale * static_cast<T>(kLog2E);
  slot_dots<T>(p.query, row_at(p.query, batch, head, 0), p.key,
               row_at(p.key, batch, head, 0), p.slots, p.depth,
               [&](int64_t slot, T dot) { w[slot] = dot * factor; });
  __syncthreads();
  if (threadIdx.x < 32) {
    const T one_over_sum = softmax_of(w, p.slots, [&](int64_t slot) {
      return factor_of(p.weight, batch, head, slot);
    });
    if (threadIdx.x == 0) inverse_sum = one_over_sum;
  }
  __syncthreads();
  const int64_t out = row_at(a.out, batch, head, 0);
  values.sums(
      parts, [&](int64_t slot, int64_t, T value) { return w[slot] * value; },
      [&](int64_t n, T sum) {
        store<T>(a.out.data, out + n, a.out.type, sum * inverse_sum);
      });
}

}  // namespace

template <typename T>
void nested_step(const NestedStep<T>& p, cudaStream_t stream) {
  if (p.batch * p.heads == 0) return;
  const int64_t numbers = 2 * p.slots + 2 * p.depth + p.width;
  launch_after(step_kernel<T>, static_cast<unsigned>(p.batch * p.heads),
               kThreads, static_cast<size_t>(numbers) * sizeof(T), stream,
               "nested_causal_attention_step", p);
}

template <typename T>
void unpack_token(const SoftmaxForward<T>& a, cudaStream_t stream) {
  const SoftmaxProblem<T>& p = a.problem;
  const int64_t blocks = p.tokens.sequences * p.heads;
  if (blocks == 0) return;
  launch_after(unpack_kernel<T>, static_cast<unsigned>(blocks), kThreads,
               static_cast<size_t>(p.slots) * sizeof(T), stream,
               "unpack_attention", a);
}

#define LUNA_INSTANTIATE(T)                                         \
  template void nested_step<T>(const NestedStep<T>&, cudaStream_t); \
  template void unpack_token<T>(const SoftmaxForward<T>&, cudaStream_t);
LUNA_INSTANTIATE(float)
LUNA_INSTANTIATE(double)
#undef LUNA_INSTANTIATE

}  // namespace luna::cuda
