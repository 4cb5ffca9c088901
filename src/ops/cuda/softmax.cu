// pack_attention and unpack_attention, tile by tile: 64 query rows by 64 keys
// of scores at a time, an online softmax along the keys. Pack cuts its keys
// into pieces whose maxima, sums and outputs are merged in order. Backward
// makes each tile of probabilities again from the saved maximum and sum; the
// gradients of the slots' side are summed over pieces in order.

#include "ops/cuda/softmax.h"

#include "ops/cuda/dropout.cuh"
#include "ops/cuda/powers.cuh"
#include "ops/cuda/tile.cuh"

namespace luna::cuda {
namespace {

/// Keys of weight 0 may lie above the maximum: their power stays finite.
template <typename T>
__device__ __forceinline__ T capped_power(T x) {
  return power(x < T(100) ? x : T(100));
}
/// Query and key rows of one head of one sequence.
template <typename T>
struct Sides {
  __device__ Sides(const SoftmaxProblem<T>& p, const Piece& piece, int64_t head)
      : slot_batch(p.shared_slots ? 0 : piece.sequence),
        query_batch(p.pack ? slot_batch : piece.batch),
        key_batch(p.pack ? piece.batch : piece.sequence),
        query_begin(p.pack ? 0 : piece.begin),
        key_begin(p.pack ? piece.begin : 0),
        query({p.query, {}}, query_batch, head, query_begin),
        key({p.key, {}}, key_batch, head, key_begin),
        value({p.value, {}}, key_batch, head, key_begin),
        weight(p.weight.data == nullptr
                   ? nullptr
                   : p.weight.data + key_batch * p.weight.batch +
                         head * p.weight.head + key_begin) {}
  int64_t slot_batch, query_batch, key_batch, query_begin, key_begin;
  HeadRows<T> query, key, value;
  const T* weight;
};

template <typename T>
using Scores = T[kTile][kTile + 1];

// scores = queries i0.. times keys j0.., to the base 2.
template <typename T>
__device__ void score_tile(const SoftmaxProblem<T>& p, const Sides<T>& s,
                           typename Product<T>::Shared& shared, int64_t i0,
                           int rows, int64_t j0, int columns,
                           Product<T>& product) {
  product.clear();
  product.template add<true, true>(
      shared, p.depth,
      [&](int m, int64_t k) { return m < rows ? s.query(i0 + m, k) : T(0); },
      [&](int64_t k, int n) { return n < columns ? s.key(j0 + n, k) : T(0); });
  const T factor = p.scale * static_cast<T>(kLog2E);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      product.sum[i][j] = rounded_product(product.sum[i][j], factor);
    }
  }
}

template <typename T>
__global__ void forward_kernel(SoftmaxForward<T> a) {
  const SoftmaxProblem<T>& p = a.problem;
  __shared__ typename Product<T>::Shared shared;
  __shared__ Scores<T> scores;
  __shared__ T max[kTile], sum[kTile], factor[kTile];
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.tokens, number, piece)) return;
  const Sides<T> s(p, piece, head);
  const Keep<T> keep(p.dropout, piece.sequence, head);
  const int64_t n0 = static_cast<int64_t>(blockIdx.z) * kTile;
  const int64_t i0 =
      p.pack ? static_cast<int64_t>(blockIdx.y) * kTile : piece.offset;
  const int64_t i_end = p.pack ? p.slots : piece.offset + piece.count;
  const int rows = i_end - i0 < kTile ? static_cast<int>(i_end - i0) : kTile;
  const int64_t from = p.pack ? piece.offset : 0;
  const int64_t to = p.pack ? piece.offset + piece.count : p.slots;
  if (threadIdx.x < kTile) {
    max[threadIdx.x] = lowest<T>();
    sum[threadIdx.x] = T(0);
  }
  Product<T> out;
  for (int64_t j0 = from; j0 < to; j0 += kTile) {
    const int columns = to - j0 < kTile ? static_cast<int>(to - j0) : kTile;
    Product<T> tile;
    score_tile(p, s, shared, i0, rows, j0, columns, tile);
    __syncthreads();
    tile.for_each([&](int m, int n, T x) { scores[m][n] = x; });
    __syncthreads();
    {  // four threads a row
      const int row = threadIdx.x / 4, quarter = threadIdx.x % 4;
      T top = max[row];
      const T before = top;
      for (int n = quarter; n < columns; n += 4) {
        const bool live = s.weight == nullptr || s.weight[j0 + n] > T(0);
        if (live && scores[row][n] > top) top = scores[row][n];
      }
      for (int step = 1; step < 4; step *= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, top, step);
        if (other > top) top = other;
      }
      T total = 0;
      for (int n = quarter; n < kTile; n += 4) {
        T e = 0;
        if (n < columns) {
          const T w = s.weight == nullptr ? T(1) : s.weight[j0 + n];
          if (w > T(0)) e = w * power(scores[row][n] - top);
        }
        total += e;
        const int64_t token = p.pack ? j0 + n : i0 + row;
        const int64_t slot = p.pack ? i0 + row : j0 + n;
        scores[row][n] = e == T(0) ? T(0) : e * keep(token, slot);
      }
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      __syncwarp();  // all four have read the maximum
      if (quarter == 0) {
        factor[row] = power(before - top);
        max[row] = top;
        sum[row] = sum[row] * factor[row] + total;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T f = factor[out.y + i];
#pragma unroll
      for (int j = 0; j < 4; ++j) out.sum[i][j] *= f;
    }
    out.template add<true, false>(
        shared, columns, [&](int m, int64_t k) { return scores[m][k]; },
        [&](int64_t k, int n) {
          return n0 + n < p.width ? s.value(j0 + k, n0 + n) : T(0);
        });
  }
  __syncthreads();
  if (p.pack) {
    T* part = a.parts + (number * p.heads + head) * p.slots * (p.width + 2);
    out.for_each([&](int m, int n, T x) {
      if (m < rows && n0 + n < p.width) {
        part[(i0 + m) * (p.width + 2) + n0 + n] = x;
      }
    });
    if (n0 == 0 && threadIdx.x < rows) {
      T* row = part + (i0 + threadIdx.x) * (p.width + 2) + p.width;
      row[0] = max[threadIdx.x];
      row[1] = sum[threadIdx.x];
    }
    return;
  }
  out.for_each([&](int m, int n, T x) {
    if (m >= rows || n0 + n >= p.width) return;
    const T y = x * inverse_of(sum[m]);
    const int64_t row = s.query_begin + i0 + m;
    store<T>(a.out.data, row_at(a.out, s.query_batch, head, row) + n0 + n,
             a.out.type, y);
    if (a.unrounded.data != nullptr) {
      store<T>(a.unrounded.data,
               row_at(a.unrounded, s.query_batch, head, row) + n0 + n,
               a.unrounded.type, y);
    }
  });
  if (a.max != nullptr && n0 == 0 && threadIdx.x < rows) {
    const int64_t at = s.query_batch * a.stats_batch + head * a.stats_head +
                       s.query_begin + i0 + threadIdx.x;
    const T total = sum[threadIdx.x];
    a.max[at] = total == T(0) ? T(0) : max[threadIdx.x];
    a.inverse[at] = inverse_of(total);
  }
}

// A warp merges one slot's parts.
template <typename T>
__global__ void merge_kernel(SoftmaxForward<T> a) {
  const SoftmaxProblem<T>& p = a.problem;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int64_t slot = row % p.slots, pair = row / p.slots;
  const int64_t head = pair % p.heads, sequence = pair / p.heads;
  if (sequence >= p.tokens.sequences) return;
  const int lane = threadIdx.x % 32;
  Piece all;
  sequence_of(p.tokens, sequence, all);
  const int64_t first = first_piece(p.tokens, sequence);
  const int64_t count = (all.length + p.tokens.size - 1) / p.tokens.size;
  const int64_t step = p.heads * p.slots * (p.width + 2);
  const T* parts =
      a.parts + ((first * p.heads + head) * p.slots + slot) * (p.width + 2);
  T top = lowest<T>(), sum = 0;
  for (int64_t q = 0; q < count; ++q) {
    const T x = parts[q * step + p.width];
    if (x > top) top = x;
  }
  for (int64_t q = 0; q < count; ++q) {
    sum +=
        power(parts[q * step + p.width] - top) * parts[q * step + p.width + 1];
  }
  const T inverse = inverse_of(sum);
  const int64_t out = row_at(a.out, sequence, head, slot);
  const int64_t wide = row_at(a.unrounded, sequence, head, slot);
  for (int64_t n = lane; n < p.width; n += 32) {
    T total = 0;
    for (int64_t q = 0; q < count; ++q) {
      total += power(parts[q * step + p.width] - top) * inverse *
               parts[q * step + n];
    }
    if (inverse == T(0)) total = T(0);
    store<T>(a.out.data, out + n, a.out.type, total);
    if (a.unrounded.data != nullptr) {
      store<T>(a.unrounded.data, wide + n, a.unrounded.type, total);
    }
  }
  if (lane == 0) {
    const int64_t at = sequence * a.stats_batch + head * a.stats_head + slot;
    a.max[at] = sum == T(0) ? T(0) : top;
    a.inverse[at] = inverse;
  }
}

// A thread a row, in the order of Product: where one key takes all, the two
// must cancel to the last bit.
template <typename T>
__global__ void dots_kernel(int64_t batch, int64_t heads, int64_t length,
                            int64_t width, Rows a, Rows b, T* dots) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= batch * heads * length) return;
  const int64_t t = row % length, bh = row / length;
  const int64_t x = row_at(a, bh / heads, bh % heads, t);
  const int64_t y = row_at(b, bh / heads, bh % heads, t);
  T total = 0;
  for (int64_t n = 0; n < width; ++n) {
    total = fma(load<T>(a.data, x + n, a.type), load<T>(b.data, y + n, b.type),
                total);
  }
  dots[row] = total;
}

// Blocks of the token side own 64 tokens and walk the slots; blocks of the
// slot side own 64 slots and walk a piece of tokens.
template <typename T, SoftmaxTarget kTarget>
__global__ void backward_kernel(SoftmaxBackward<T> a) {
  const SoftmaxProblem<T>& p = a.problem;
  constexpr bool kQuery = kTarget == SoftmaxTarget::kQuery;
  __shared__ typename Product<T>::Shared shared;
  __shared__ Scores<T> scores;
  __shared__ T weight_sum[kTile];
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.tokens, number, piece)) return;
  const Sides<T> s(p, piece, head);
  const Keep<T> keep(p.dropout, piece.sequence, head);
  const HeadRows<T> grad_out({a.grad_out, {}},
                             p.pack ? piece.sequence : piece.batch, head,
                             s.query_begin);
  const int64_t stats =
      (p.pack ? piece.sequence : piece.batch) * a.stats_batch +
      head * a.stats_head + s.query_begin;
  const bool of_tokens = p.pack != kQuery;  // the target's side
  const int64_t n0 = static_cast<int64_t>(blockIdx.z) * kTile;
  const int64_t own0 =
      of_tokens ? piece.offset : static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t own_end = of_tokens ? piece.offset + piece.count : p.slots;
  const int own =
      own_end - own0 < kTile ? static_cast<int>(own_end - own0) : kTile;
  const int64_t from = of_tokens ? 0 : piece.offset;
  const int64_t to = of_tokens ? p.slots : piece.offset + piece.count;
  const int64_t width = kTarget == SoftmaxTarget::kValue ? p.width : p.depth;
  const bool wants_weight =
      kTarget == SoftmaxTarget::kKey && a.grad_weight != nullptr && n0 == 0;
  if (threadIdx.x < kTile) weight_sum[threadIdx.x] = T(0);
  Product<T> out;
  for (int64_t other0 = from; other0 < to; other0 += kTile) {
    const int other =
        to - other0 < kTile ? static_cast<int>(to - other0) : kTile;
    const int64_t i0 = kQuery ? own0 : other0, j0 = kQuery ? other0 : own0;
    const int rows = kQuery ? own : other, columns = kQuery ? other : own;
    Product<T> tile;
    score_tile(p, s, shared, i0, rows, j0, columns, tile);
    Product<T> dp;
    if (kTarget != SoftmaxTarget::kValue) {
      dp.template add<true, true>(
          shared, p.width,
          [&](int m, int64_t k) {
            return m < rows ? grad_out(i0 + m, k) : T(0);
          },
          [&](int64_t k, int n) {
            return n < columns ? s.value(j0 + n, k) : T(0);
          });
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int m = tile.y + i, n = tile.x + j;
        T x = 0;
        if (m < rows && n < columns) {
          const T w = s.weight == nullptr ? T(1) : s.weight[j0 + n];
          const T e = capped_power(tile.sum[i][j] - a.max[stats + i0 + m]) *
                      a.inverse[stats + i0 + m];
          const T kept =
              keep(p.pack ? j0 + n : i0 + m, p.pack ? i0 + m : j0 + n);
          if (kTarget == SoftmaxTarget::kValue) {
            x = e * w * kept;
          } else {
            x = e * (dp.sum[i][j] * kept - a.delta[stats + i0 + m]);
          }
        }
        scores[m][n] = x;
      }
    }
    __syncthreads();
    if (wants_weight) {
      const int n = threadIdx.x / 4, quarter = threadIdx.x % 4;
      T total = 0;
      for (int m = quarter; m < rows; m += 4) total += scores[m][n];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (quarter == 0) weight_sum[n] += total;
    }
    const bool times_weight =
        kTarget != SoftmaxTarget::kValue && s.weight != nullptr;
    if (kQuery) {
      out.template add<true, false>(
          shared, other,
          [&](int m, int64_t k) {
            return times_weight ? scores[m][k] * s.weight[j0 + k]
                                : scores[m][k];
          },
          [&](int64_t k, int n) {
            return n0 + n < width ? s.key(j0 + k, n0 + n) : T(0);
          });
    } else {
      out.template add<false, false>(
          shared, other,
          [&](int m, int64_t k) {
            return times_weight && m < own ? scores[k][m] * s.weight[j0 + m]
                                           : scores[k][m];
          },
          [&](int64_t k, int n) {
            if (n0 + n >= width) return T(0);
            return kTarget == SoftmaxTarget::kValue ? grad_out(i0 + k, n0 + n)
                                                    : s.query(i0 + k, n0 + n);
          });
    }
  }
  __syncthreads();
  const T gain = kTarget == SoftmaxTarget::kValue ? T(1) : p.scale;
  if (of_tokens) {
    out.for_each([&](int m, int n, T x) {
      if (m >= own || n0 + n >= width) return;
      store<T>(
          a.grad.data,
          row_at(a.grad, piece.batch, head, piece.begin + own0 + m) + n0 + n,
          a.grad.type, x * gain);
    });
    if (wants_weight && threadIdx.x < own) {
      a.grad_weight[piece.batch * a.weight_batch + head * a.weight_head +
                    piece.begin + own0 + threadIdx.x] = weight_sum[threadIdx.x];
    }
    return;
  }
  const int64_t ld = width + (kTarget == SoftmaxTarget::kKey ? 1 : 0);
  T* part = a.parts + (number * p.heads + head) * p.slots * ld;
  out.for_each([&](int m, int n, T x) {
    if (m < own && n0 + n < width) {
      part[(own0 + m) * ld + n0 + n] = x * gain;
    }
  });
  if (kTarget == SoftmaxTarget::kKey && n0 == 0 && threadIdx.x < own) {
    part[(own0 + threadIdx.x) * ld + width] = weight_sum[threadIdx.x];
  }
}

// The slots' gradient from its parts: over one sequence, or over all.
template <typename T>
__global__ void slots_kernel(SoftmaxBackward<T> a, int64_t width, int64_t ld,
                             int64_t targets) {
  const SoftmaxProblem<T>& p = a.problem;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= targets * p.heads * p.slots * ld) return;
  const int64_t n = at % ld, slot = at / ld % p.slots;
  const int64_t head = at / ld / p.slots % p.heads;
  const int64_t target = at / ld / p.slots / p.heads;
  const int64_t last = p.shared_slots ? p.tokens.sequences : target + 1;
  T total = 0;
  for (int64_t sequence = target; sequence < last; ++sequence) {
    Piece all;
    sequence_of(p.tokens, sequence, all);
    const int64_t first = first_piece(p.tokens, sequence);
    const int64_t count = (all.length + p.tokens.size - 1) / p.tokens.size;
    for (int64_t q = first; q < first + count; ++q) {
      total += a.parts[((q * p.heads + head) * p.slots + slot) * ld + n];
    }
  }
  if (n < width) {
    store<T>(a.grad.data, row_at(a.grad, target, head, slot) + n, a.grad.type,
             total);
  } else if (a.grad_weight != nullptr) {
    a.grad_weight[target * a.weight_batch + head * a.weight_head + slot] =
        total;
  }
}

unsigned tiles_of(int64_t width) {
  return static_cast<unsigned>(width == 0 ? 1 : blocks_for(width, kTile));
}

}  // namespace

template <typename T>
void softmax_forward(const SoftmaxForward<T>& a, cudaStream_t stream) {
  const SoftmaxProblem<T>& p = a.problem;
  if (p.heads == 0 || p.tokens.sequences == 0) return;
  if (p.pack && p.slots == 0) return;
  if (p.tokens.bound > 0) {
    const dim3 grid(static_cast<unsigned>(p.tokens.bound * p.heads),
                    p.pack ? tiles_of(p.slots) : 1, tiles_of(p.width));
    forward_kernel<<<grid, kThreads, 0, stream>>>(a);
    check_launch("softmax_forward");
  }
  if (!p.pack) return;
  const int64_t rows = p.tokens.sequences * p.heads * p.slots;
  merge_kernel<<<static_cast<unsigned>(blocks_for(rows, kThreads / 32)),
                 kThreads, 0, stream>>>(a);
  check_launch("softmax_forward, merge");
}

template <typename T>
void row_dots(int64_t batch, int64_t heads, int64_t length, int64_t width,
              const Rows& a, const Rows& b, T* dots, cudaStream_t stream) {
  const int64_t rows = batch * heads * length;
  if (rows == 0) return;
  dots_kernel<<<static_cast<unsigned>(blocks_for(rows, kThreads)), kThreads, 0,
                stream>>>(batch, heads, length, width, a, b, dots);
  check_launch("row_dots");
}

template <typename T>
void softmax_backward(const SoftmaxBackward<T>& a, cudaStream_t stream) {
  const SoftmaxProblem<T>& p = a.problem;
  if (p.heads == 0 || p.tokens.sequences == 0) return;
  const bool query = a.target == SoftmaxTarget::kQuery;
  const bool of_tokens = p.pack != query;
  const int64_t width = a.target == SoftmaxTarget::kValue ? p.width : p.depth;
  if (!of_tokens && p.slots == 0) return;
  if (p.tokens.bound > 0) {
    const dim3 grid(static_cast<unsigned>(p.tokens.bound * p.heads),
                    of_tokens ? 1 : tiles_of(p.slots), tiles_of(width));
    if (query) {
      backward_kernel<T, SoftmaxTarget::kQuery>
          <<<grid, kThreads, 0, stream>>>(a);
    } else if (a.target == SoftmaxTarget::kKey) {
      backward_kernel<T, SoftmaxTarget::kKey><<<grid, kThreads, 0, stream>>>(a);
    } else {
      backward_kernel<T, SoftmaxTarget::kValue>
          <<<grid, kThreads, 0, stream>>>(a);
    }
    check_launch("softmax_backward");
  }
  if (of_tokens) return;
  const int64_t ld = width + (a.target == SoftmaxTarget::kKey ? 1 : 0);
  const int64_t targets = p.shared_slots ? 1 : p.tokens.sequences;
  const int64_t numbers = targets * p.heads * p.slots * ld;
  if (numbers == 0) return;
  slots_kernel<<<static_cast<unsigned>(blocks_for(numbers, kThreads)), kThreads,
                 0, stream>>>(a, width, ld, targets);
  check_launch("softmax_backward, slots");
}

#define LUNA_INSTANTIATE(T)                                                   \
  template void softmax_forward<T>(const SoftmaxForward<T>&, cudaStream_t);   \
  template void softmax_backward<T>(const SoftmaxBackward<T>&, cudaStream_t); \
  template void row_dots<T>(int64_t, int64_t, int64_t, int64_t, const Rows&,  \
                            const Rows&, T*, cudaStream_t);
LUNA_INSTANTIATE(float)
LUNA_INSTANTIATE(double)
#undef LUNA_INSTANTIATE

}  // namespace luna::cuda
