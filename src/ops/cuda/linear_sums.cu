#include "ops/cuda/linear_sums.h"

#include <type_traits>

#include "ops/cuda/split_product.cuh"

namespace luna::cuda {
namespace {

template <typename T>
struct ExactRows : HeadRows<T> {
  using HeadRows<T>::HeadRows;
  __device__ T zero() const { return T(0); }
};
template <typename T>
using RowsOf =
    std::conditional_t<std::is_same_v<T, float>, RawRows, ExactRows<T>>;

// A block: one piece, one head, 64 features by 64 columns of values; the
// blocks of the first columns also add up the last one.
template <typename T, typename Product>
__global__ void __launch_bounds__(kThreads, 2) outer_kernel(OuterSums<T> p) {
  __shared__ typename Product::Shared shared;
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.pieces, number, piece)) return;
  const int64_t f0 = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t v0 = static_cast<int64_t>(blockIdx.z) * kTile;
  const int64_t begin = piece.begin + piece.offset;
  const RowsOf<T> a(p.a, piece.batch, head, begin);
  const RowsOf<T> b(p.b, piece.batch, head, begin);
  Product product;
  product.template add<false, false>(
      shared, piece.count,
      [&](int m, int64_t t) {
        return f0 + m < p.features ? a(t, f0 + m) : a.zero();
      },
      [&](int64_t t, int n) {
        return v0 + n < p.width ? b(t, v0 + n) : b.zero();
      });
  T* out = p.parts + (number * p.heads + head) * p.features * p.ld;
  product.for_each([&](int m, int n, T x) {
    if (f0 + m < p.features && v0 + n < p.width) {
      out[(f0 + m) * p.ld + v0 + n] = x;
    }
  });
  if (p.ld == p.width || v0 > 0) return;
  // Four threads a feature, each every fourth token.
  __shared__ T last[4][kTile];
  const int f = threadIdx.x % kTile, quarter = threadIdx.x / kTile;
  T total = 0;
  if (f0 + f < p.features) {
#pragma unroll 8
    for (int64_t t = quarter; t < piece.count; t += 4) {
      total += static_cast<T>(a(t, f0 + f)) *
               factor_of(p.last, piece.batch, head, begin + t);
    }
  }
  last[quarter][f] = total;
  __syncthreads();
  if (quarter == 0 && f0 + f < p.features) {
    out[(f0 + f) * p.ld + p.width] =
        (last[0][f] + last[1][f]) + (last[2][f] + last[3][f]);
  }
}

template <typename T>
__global__ void add_parts_kernel(AddParts<T> p, int64_t blocks) {
  const auto width = static_cast<unsigned>(blocks);
  const auto heads = static_cast<unsigned>(p.heads);
  const int64_t i =
      static_cast<int64_t>(blockIdx.x % width) * kThreads + threadIdx.x;
  const unsigned pair = blockIdx.x / width;
  const int64_t head = pair % heads, sequence = pair / heads;
  if (i >= p.size) return;
  const int64_t own = (sequence * p.heads + head) * p.size + i;
  T total = p.start == nullptr ? T(0) : p.start[own];
  const int64_t first = first_piece(p.pieces, sequence);
  Piece all;
  sequence_of(p.pieces, sequence, all);
  const int64_t count = (all.length + p.pieces.size - 1) / p.pieces.size;
  const int64_t step = p.heads * p.size;
  T* at = p.parts + (first * p.heads + head) * p.size + i;
  T* saved = nullptr;
  if (p.saved != nullptr) {
    saved =
        p.saved + (first_piece(p.save, sequence) * p.heads + head) * p.size + i;
  }
  constexpr int kAhead = 8;  // loads in flight
  for (int64_t k = 0; k < count; k += kAhead) {
    T own_sums[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t q = p.backwards ? count - 1 - k - j : k + j;
      own_sums[j] = k + j < count ? at[q * step] : T(0);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (k + j >= count) break;
      const int64_t q = p.backwards ? count - 1 - k - j : k + j;
      if (p.scan) at[q * step] = total;
      if (saved != nullptr && q % p.save_every == 0) {
        saved[q / p.save_every * step] = total;
      }
      total += own_sums[j];
    }
  }
  if (p.total != nullptr) p.total[own] = total;
}

// The same where parts are only added, four numbers a thread.
__global__ void add_parts_wide(AddParts<float> p, unsigned width) {
  const auto heads = static_cast<unsigned>(p.heads);
  const unsigned pair = blockIdx.x / width;
  const int64_t i =
      static_cast<int64_t>(blockIdx.x % width) * kThreads + threadIdx.x;
  if (i >= p.size / 4) return;
  const int64_t head = pair % heads, sequence = pair / heads;
  Piece all;
  sequence_of(p.pieces, sequence, all);
  const int64_t count = (all.length + p.pieces.size - 1) / p.pieces.size;
  const int64_t step = p.heads * p.size / 4;
  const float4* at = reinterpret_cast<const float4*>(
      p.parts + (first_piece(p.pieces, sequence) * p.heads + head) * p.size);
  const int64_t own = static_cast<int64_t>(pair) * p.size / 4 + i;
  float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
  if (p.start != nullptr) {
    total = reinterpret_cast<const float4*>(p.start)[own];
  }
#pragma unroll 4
  for (int64_t k = 0; k < count; ++k) {
    const float4 x = at[k * step + i];
    total.x += x.x;
    total.y += x.y;
    total.z += x.z;
    total.w += x.w;
  }
  reinterpret_cast<float4*>(p.total)[own] = total;
}

template <typename T, typename Product, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 2) apply_kernel(Apply<T> p) {
  __shared__ typename Product::Shared shared;
  __shared__ T scores[kTile][kTile + 1];
  __shared__ T den[kTile];
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece tile;
  if (!locate(p.tiles, number, tile)) return;
  const int64_t n0 = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t begin = tile.begin + tile.offset;
  const int count = static_cast<int>(tile.count);
  const RowsOf<T> x(p.x, tile.batch, head, begin);
  const auto x_at = [&](int m, int64_t k) {
    return m < count ? x(m, k) : x.zero();
  };
  const int64_t in_pieces = p.causal ? tile.offset / p.pieces.size : 0;
  const int64_t sums_row =
      p.causal ? first_piece(p.pieces, tile.sequence) + in_pieces
               : tile.sequence;
  const T* sums = p.sums + (sums_row * p.heads + head) * p.sums_size;
  Product out;
  if (kTransposed) {
    out.template add<true, true>(shared, p.depth, x_at, [&](int64_t k, int n) {
      return n0 + n < p.width ? sums[(n0 + n) * p.ld + k] : T(0);
    });
  } else {
    out.template add<true, false>(shared, p.depth, x_at, [&](int64_t k, int n) {
      return n0 + n < p.width ? sums[k * p.ld + n0 + n] : T(0);
    });
  }
  if (kTransposed && p.with_last) {
    out.for_each([&](int m, int n, T& x) {
      if (m >= count || n0 + n >= p.width) return;
      const T c =
          p.backwards ? T(1) : factor_of(p.d, tile.batch, head, begin + m);
      x += c * sums[(n0 + n) * p.ld + p.depth];
    });
  }
  // The normaliser: four threads a row.
  if (p.normalize) {
    const int row = threadIdx.x / 4, quarter = threadIdx.x % 4;
    T total = 0;
    if (row < count) {
#pragma unroll 8
      for (int64_t k = quarter; k < p.depth; k += 4) {
        total += static_cast<T>(x(row, k)) * sums[k * p.ld + p.width];
      }
    }
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (quarter == 0) den[row] = total;
  }
  if (p.causal) {
    const int64_t piece_begin = in_pieces * p.pieces.size;
    int64_t piece_end = piece_begin + p.pieces.size;
    if (piece_end > tile.length) piece_end = tile.length;
    const int64_t from = p.backwards ? tile.offset : piece_begin;
    const int64_t to = p.backwards ? piece_end : tile.offset + count;
    for (int64_t j0 = from; j0 < to; j0 += kTile) {
      const int columns =
          piece_end - j0 < kTile ? static_cast<int>(piece_end - j0) : kTile;
      const RowsOf<T> y(p.y, tile.batch, head, tile.begin + j0);
      const RowsOf<T> z(p.z, tile.batch, head, tile.begin + j0);
      Product inner;
      inner.template add<true, true>(
          shared, p.depth, x_at,
          [&](int64_t k, int n) { return n < columns ? y(n, k) : y.zero(); });
      __syncthreads();  // scores of the turn before are read
      inner.for_each([&](int m, int n, T s) {
        const int64_t t = tile.offset + m, j = j0 + n;
        const bool seen =
            m < count && n < columns && (p.backwards ? j >= t : j <= t);
        if (kTransposed && p.with_last && seen) {
          s += factor_of(p.d, tile.batch, head,
                         tile.begin + (p.backwards ? j : t));
        }
        scores[m][n] = seen ? s : T(0);
      });
      __syncthreads();
      if (p.normalize) {
        const int row = threadIdx.x / 4, quarter = threadIdx.x % 4;
        T total = 0;
        for (int n = quarter; n < kTile; n += 4) total += scores[row][n];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (quarter == 0) den[row] += total;
      }
      out.template add<true, false>(
          shared, columns, [&](int m, int64_t k) { return scores[m][k]; },
          [&](int64_t k, int n) {
            return n0 + n < p.width ? z(k, n0 + n) : z.zero();
          });
    }
  }
  __syncthreads();
  if (threadIdx.x < count) {
    const int m = static_cast<int>(threadIdx.x);
    if (p.denominator != nullptr && n0 == 0) {
      p.denominator[tile.batch * p.denominator_batch +
                    head * p.denominator_head + begin + m] = den[m];
    }
    const T factor = factor_of(p.out_factor, tile.batch, head, begin + m);
    den[m] = p.normalize ? factor / guarded(den[m], p.eps) : factor;
  }
  __syncthreads();
  out.for_each([&](int m, int n, T x) {
    if (m >= count || n0 + n >= p.width) return;
    store<T>(p.out.data, row_at(p.out, tile.batch, head, begin + m) + n0 + n,
             p.out.type, x * den[m]);
  });
}

// A warp has eight rows of a tile of 64.
template <typename T>
__global__ void row_gradients_kernel(RowGradients<T> p) {
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece tile;
  if (!locate(p.tiles, number, tile)) return;
  int64_t live = 0, keys = 0;
  if (p.live != nullptr) {
    live = p.live[tile.sequence * p.heads + head];
    Piece side;
    sequence_of(p.keys, tile.sequence, side);
    keys = side.length;
  }
  constexpr int kWarps = kThreads / 32, kOwn = kTile / kWarps;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = tile.begin + tile.offset;
  const RowsOf<T> grad({p.grad, {}}, tile.batch, head, begin);
  const RowsOf<T> out({p.out, {}}, tile.batch, head, begin);
  T dot[kOwn] = {};
  for (int64_t j = lane; p.normalize && j < p.width; j += 32) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int m = warp + i * kWarps;
      if (m >= tile.count) break;
      dot[i] += static_cast<T>(grad(m, j)) * static_cast<T>(out(m, j));
    }
  }
  T own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const T total = warp_sum(dot[i]);
    if (lane == i) own = total;
  }
  const int m = warp + lane * kWarps;
  if (lane >= kOwn || m >= tile.count) return;
  const int64_t t = tile.offset + m;
  const int64_t at =
      tile.batch * p.out_batch + head * p.out_head + tile.begin + t;
  const bool dead = p.causal ? t < live : live == keys && live > 0;
  const T den = p.normalize ? p.denominator[at] : T(1);
  const T inverse = dead          ? T(0)
                    : p.normalize ? T(1) / guarded(den, p.eps)
                                  : T(1);
  const bool varies = p.normalize && (den < T(0) ? -den : den) > p.eps && !dead;
  p.inverse[at] = inverse;
  p.d[at] = varies ? -own * inverse : T(0);
}

template <typename T>
__global__ void live_kernel(Cut keys, int64_t heads, Factor<T> weight,
                            int64_t* live) {
  __shared__ int64_t first;
  const int64_t head = blockIdx.x % heads, sequence = blockIdx.x / heads;
  Piece all;
  sequence_of(keys, sequence, all);
  if (threadIdx.x == 0) first = all.length;
  __syncthreads();
  for (int64_t t0 = 0; t0 < all.length; t0 += kThreads) {
    const int64_t t = t0 + threadIdx.x;
    const bool alive = t < all.length &&
                       factor_of(weight, all.batch, head, all.begin + t) > T(0);
    if (alive) {
      atomicMin(reinterpret_cast<long long*>(&first),
                static_cast<long long>(t));
    }
    if (__syncthreads_or(alive)) break;
  }
  if (threadIdx.x == 0) live[blockIdx.x] = first;
}

template <typename T>
__global__ void finish_kernel(FinishKeys<T> p) {
  const int64_t token =
      static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (token >= p.batch * p.heads * p.length) return;
  const int lane = threadIdx.x % 32;
  const int64_t t = token % p.length, bh = token / p.length;
  const int64_t head = bh % p.heads, batch = bh / p.heads;
  const T weight = factor_of(p.weight, batch, head, t);
  const RowsOf<T> phi({p.phi, {}}, batch, head, t);
  const RowsOf<T> g({p.g, {}}, batch, head, t);
  const int64_t to = row_at(p.to, batch, head, t);
  T dot = 0;
#pragma unroll 4
  for (int64_t f = lane; f < p.features; f += 32) {
    const T x = static_cast<T>(g(0, f));
    dot += static_cast<T>(phi(0, f)) * x;
    store<T>(p.to.data, to + f, p.to.type, x * weight);
  }
  dot = warp_sum(dot);
  if (lane == 0) p.grad_weight[token] = dot;
}

unsigned tiles_of(int64_t width) {
  return static_cast<unsigned>(blocks_for(width, kTile));
}

}  // namespace

template <typename T>
void outer_sums(const OuterSums<T>& p, cudaStream_t stream) {
  if (p.pieces.bound * p.heads * p.features * p.ld == 0) return;
  // A value of width 0 still has its normaliser.
  const unsigned columns = p.width == 0 ? 1 : tiles_of(p.width);
  const dim3 grid(static_cast<unsigned>(p.pieces.bound * p.heads),
                  tiles_of(p.features), columns);
  auto kernel = outer_kernel<T, Product<T>>;
  if constexpr (std::is_same_v<T, float>) {
    if (p.split) kernel = outer_kernel<T, SplitProduct>;
  }
  kernel<<<grid, kThreads, 0, stream>>>(p);
  check_launch("outer_sums");
}

template <typename T>
void add_parts(const AddParts<T>& p, cudaStream_t stream) {
  const int64_t pairs = p.pieces.sequences * p.heads;
  if (pairs * p.size == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    const auto in_words = [](const void* x) {
      return reinterpret_cast<uintptr_t>(x) % 16 == 0;
    };
    if (!p.scan && p.saved == nullptr && p.total != nullptr &&
        p.size % 4 == 0 && in_words(p.parts) && in_words(p.start) &&
        in_words(p.total)) {
      const int64_t width = blocks_for(p.size / 4, kThreads);
      add_parts_wide<<<static_cast<unsigned>(pairs * width), kThreads, 0,
                       stream>>>(p, static_cast<unsigned>(width));
      check_launch("add_parts");
      return;
    }
  }
  const int64_t blocks = blocks_for(p.size, kThreads);
  add_parts_kernel<<<static_cast<unsigned>(pairs * blocks), kThreads, 0,
                     stream>>>(p, blocks);
  check_launch("add_parts");
}

template <typename T>
void apply_sums(const Apply<T>& p, cudaStream_t stream) {
  if (p.tiles.bound * p.heads == 0) return;
  if (p.width == 0 && p.denominator == nullptr) return;
  const dim3 grid(static_cast<unsigned>(p.tiles.bound * p.heads),
                  p.width == 0 ? 1 : tiles_of(p.width));
  auto kernel = p.transposed ? apply_kernel<T, Product<T>, true>
                             : apply_kernel<T, Product<T>, false>;
  if constexpr (std::is_same_v<T, float>) {
    if (p.split) {
      kernel = p.transposed ? apply_kernel<T, SplitProduct, true>
                            : apply_kernel<T, SplitProduct, false>;
    }
  }
  kernel<<<grid, kThreads, 0, stream>>>(p);
  check_launch("apply_sums");
}

template <typename T>
void row_gradients(const RowGradients<T>& p, cudaStream_t stream) {
  if (p.tiles.bound * p.heads == 0) return;
  row_gradients_kernel<<<static_cast<unsigned>(p.tiles.bound * p.heads),
                         kThreads, 0, stream>>>(p);
  check_launch("row_gradients");
}

template <typename T>
void first_live_keys(const Cut& keys, int64_t heads, const Factor<T>& weight,
                     int64_t* live, cudaStream_t stream) {
  if (keys.sequences * heads == 0) return;
  live_kernel<<<static_cast<unsigned>(keys.sequences * heads), kThreads, 0,
                stream>>>(keys, heads, weight, live);
  check_launch("first_live_keys");
}

template <typename T>
void finish_keys(const FinishKeys<T>& p, cudaStream_t stream) {
  const int64_t tokens = p.batch * p.heads * p.length;
  if (tokens == 0) return;
  finish_kernel<<<static_cast<unsigned>(blocks_for(tokens, kThreads / 32)),
                  kThreads, 0, stream>>>(p);
  check_launch("finish_keys");
}

#define LUNA_INSTANTIATE(T)                                               \
  template void outer_sums<T>(const OuterSums<T>&, cudaStream_t);         \
  template void add_parts<T>(const AddParts<T>&, cudaStream_t);           \
  template void apply_sums<T>(const Apply<T>&, cudaStream_t);             \
  template void row_gradients<T>(const RowGradients<T>&, cudaStream_t);   \
  template void first_live_keys<T>(const Cut&, int64_t, const Factor<T>&, \
                                   int64_t*, cudaStream_t);               \
  template void finish_keys<T>(const FinishKeys<T>&, cudaStream_t);
LUNA_INSTANTIATE(float)
LUNA_INSTANTIATE(double)
#undef LUNA_INSTANTIATE

}  // namespace luna::cuda
