// phi(x) and its way back, for any width, number of projections and channels.
//
// Backward: a block owns a part of one head's tokens. du and dx belong to a
// tile of 64 tokens; the sums per segment go to a part of global memory that
// the block alone writes, each column by one thread, so that no atomics are
// needed and the order is fixed. The parts are added up in double.

#include "ops/cuda/features.h"

#include <algorithm>

#include "ops/cuda/psi.cuh"
#include "ops/cuda/tile.cuh"

namespace luna::cuda {
namespace {

template <typename T>
__device__ T project(const FeatureMap<T>& map, const FeatureRows& r,
                     int64_t row, int64_t head, int64_t m) {
  const int64_t set = map.per_head ? head * map.projections + m : m;
  const T* w = map.weight + set * map.width;
  T u = map.bias[set];
  for (int64_t j = 0; j < map.width; ++j) {
    u += w[j] * load<T>(r.x.data, row + j, r.x.type);
  }
  return u;
}

// A thread makes all channels of one token and projection.
template <typename T>
__global__ void forward_kernel(FeatureMap<T> map, FeatureRows r, Rows phi) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t m = at % map.projections, token = at / map.projections;
  if (token >= r.batch * r.heads * r.length) return;
  const int64_t t = token % r.length, bh = token / r.length;
  const int64_t head = bh % r.heads, batch = bh / r.heads;
  const T u = project(map, r, row_at(r.x, batch, head, t), head, m);
  const Psi<T> psi(map.shape, map.table);
  const int64_t channels = map.shape.channels;
  const T* row = psi.rows + psi.segment_of(u) * 2 * channels;
  const int64_t out = row_at(phi, batch, head, t) + m * channels;
  for (int64_t c = 0; c < channels; ++c) {
    const T value = row[c] * u + row[channels + c];
    store<T>(phi.data, out + c, phi.type,
             (map.nonneg && value < T(0) ? T(0) : value) * map.factor);
  }
}

constexpr int kBackwardTokens = 32;

template <typename T>
__global__ void backward_kernel(FeatureMap<T> map, FeatureRows r, Rows grad_phi,
                                Rows grad_x, T* partials, int64_t size) {
  extern __shared__ double2 memory[];
  const int64_t m_count = map.projections, channels = map.shape.channels;
  // u, du [tokens, M], segments [tokens, M]
  T* u = reinterpret_cast<T*>(memory);
  T* du = u + kBackwardTokens * m_count;
  int* segment = reinterpret_cast<int*>(du + kBackwardTokens * m_count);
  const int64_t head = blockIdx.y, part = blockIdx.x, parts = gridDim.x;
  T* sums = partials + (head * parts + part) * size;
  T* weights = sums + (map.shape.knots + 1) * 2 * channels;
  T* biases = weights + m_count * map.width;
  const Psi<T> psi(map.shape, map.table);
  const int64_t tiles = (r.length + kBackwardTokens - 1) / kBackwardTokens;
  for (int64_t tile = part; tile < r.batch * tiles; tile += parts) {
    const int64_t batch = tile / tiles;
    const int64_t first = tile % tiles * kBackwardTokens;
    const int64_t left = r.length - first;
    const int count =
        left < kBackwardTokens ? static_cast<int>(left) : kBackwardTokens;
    const int64_t pairs = count * m_count;
    __syncthreads();
    for (int64_t e = threadIdx.x; e < pairs; e += kThreads) {
      const int64_t t = first + e / m_count, m = e % m_count;
      const T x = project(map, r, row_at(r.x, batch, head, t), head, m);
      const int s = psi.segment_of(x);
      const T* row = psi.rows + static_cast<int64_t>(s) * 2 * channels;
      const int64_t up = row_at(grad_phi, batch, head, t) + m * channels;
      T total = 0;
      for (int64_t c = 0; c < channels; ++c) {
        const T value = row[c] * x + row[channels + c];
        if (map.nonneg && !(value > T(0))) continue;
        total += load<T>(grad_phi.data, up + c, grad_phi.type) * row[c];
      }
      u[e] = x;
      du[e] = total * map.factor;
      segment[e] = s;
    }
    __syncthreads();
    // Columns of the sums: thread c < L adds g of channel c, thread L + c g u.
    for (int64_t column = threadIdx.x; column < 2 * channels;
         column += kThreads) {
      const int64_t c = column % channels;
      const bool with_u = column >= channels;
      for (int64_t e = 0; e < pairs; ++e) {
        const T x = u[e];
        const int64_t at = static_cast<int64_t>(segment[e]) * 2 * channels;
        const T value = psi.rows[at + c] * x + psi.rows[at + channels + c];
        if (map.nonneg && !(value > T(0))) continue;
        const int64_t t = first + e / m_count, m = e % m_count;
        const T g = map.factor *
                    load<T>(grad_phi.data,
                            row_at(grad_phi, batch, head, t) + m * channels + c,
                            grad_phi.type);
        sums[at + column] += with_u ? g * x : g;
      }
    }
    const T* w = map.weight + (map.per_head ? head : 0) * m_count * map.width;
    for (int64_t e = threadIdx.x; e < count * map.width; e += kThreads) {
      const int64_t t = e / map.width, j = e % map.width;
      T total = 0;
      for (int64_t m = 0; m < m_count; ++m) {
        total += du[t * m_count + m] * w[m * map.width + j];
      }
      store<T>(grad_x.data, row_at(grad_x, batch, head, first + t) + j,
               grad_x.type, total);
    }
    for (int64_t e = threadIdx.x; e < m_count * map.width; e += kThreads) {
      const int64_t m = e / map.width, j = e % map.width;
      T total = 0;
      for (int t = 0; t < count; ++t) {
        total += du[t * m_count + m] *
                 load<T>(r.x.data, row_at(r.x, batch, head, first + t) + j,
                         r.x.type);
      }
      weights[e] += total;
    }
    for (int64_t m = threadIdx.x; m < m_count; m += kThreads) {
      T total = 0;
      for (int t = 0; t < count; ++t) total += du[t * m_count + m];
      biases[m] += total;
    }
  }
}

// sums[h][i] over parts (and over heads where they share a projection): 32
// numbers a block, sixteen threads each, whose sums are added in order.
constexpr int kReduceGroups = 16;

template <typename T>
__global__ void reduce_kernel(FeatureGradients<T> g, int64_t size,
                              int64_t segment_numbers, bool per_head) {
  __shared__ double shared[kReduceGroups][32];
  wait_for_previous_launch();
  allow_next_launch();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  const int64_t own_head = blockIdx.y;
  const bool own_only = per_head && i >= segment_numbers;
  const bool wanted =
      i < size && !(per_head && i < segment_numbers && own_head > 0);
  double total = 0;
  if (wanted) {
    for (int64_t set = 0; set < g.sets; ++set) {
      for (int64_t h = 0; h < g.heads; ++h) {
        if (own_only && h != own_head) continue;
        const T* from = g.partials + (set * g.heads + h) * g.parts * size + i;
#pragma unroll 8
        for (int64_t p = group; p < g.parts; p += kReduceGroups) {
          total += static_cast<double>(from[p * size]);
        }
      }
    }
  }
  shared[group][lane] = total;
  __syncthreads();
  if (group > 0 || !wanted) return;
  for (int j = 1; j < kReduceGroups; ++j) total += shared[j][lane];
  g.sums[own_head * size + i] = total;
}

// A warp for each hidden unit and each output bias, which adds up the segments
// where the unit is active; a thread for each number of the projection.
template <typename T>
__global__ void gradients_kernel(FeatureMap<T> map, FeatureGradients<T> g,
                                 int64_t size, int64_t weight_heads) {
  using Index = typename Psi<T>::Index;
  wait_for_previous_launch();
  allow_next_launch();
  const auto write = [](const typename FeatureGradients<T>::Output& to,
                        int64_t i,
                        double x) { store<double>(to.data, i, to.type, x); };
  const TableShape& s = map.shape;
  const int64_t row = 2 * s.channels, segments = sum_segments(s, g.knots);
  const int64_t own = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t weights = map.projections * map.width;
  const int64_t per_head = weights + map.projections;
  if (own < weight_heads * per_head) {
    const int64_t h = own / per_head, i = own % per_head;
    const double x = g.sums[h * size + segments * row + i];
    if (i < weights) {
      write(g.grad_weight, h * weights + i, x);
    } else {
      write(g.grad_bias, h * map.projections + i - weights, x);
    }
  }
  const int lane = threadIdx.x % 32;
  const auto sum_of = [&](int64_t column, int64_t begin, int64_t end) {
    double x = 0;
#pragma unroll 8
    for (int64_t i = begin + lane; i < end; i += 32) {
      x += g.sums[i * row + column];
    }
    return warp_sum(x);
  };
  const int64_t unit = own / 32;
  if (unit >= s.knots) {
    const int64_t c = unit - s.knots;
    if (c >= s.channels) return;
    const double x = sum_of(c, 0, segments);
    if (lane == 0) write(g.grad_output_bias, c, x);
    return;
  }
  const auto* rank = reinterpret_cast<const Index*>(map.table + s.rank_at);
  const int64_t j = unit % s.hidden;
  const int64_t from = s.trunks == 1 ? 0 : unit / s.hidden;
  const int64_t to = s.trunks == 1 ? s.channels : from + 1;
  const double w = g.hidden_weight[unit], b = g.hidden_bias[unit];
  auto r = static_cast<int64_t>(rank[unit]);
  if (g.knots == Knots::kOwn) {  // the rank among the channel's own
    const auto* ranks = rank + unit - j;
    int below = 0;
    for (int64_t i = lane; i < s.hidden; i += 32) {
      below += static_cast<int64_t>(ranks[i]) < r ? 1 : 0;
    }
    r = __reduce_add_sync(0xffffffffu, below);
  }
  const int64_t begin = w < 0 ? 0 : r + 1, end = w < 0 ? r + 1 : segments;
  double dw = 0, db = 0;
  for (int64_t c = from; c < to; ++c) {
    const double sum = sum_of(c, begin, end);
    const double sum_u = sum_of(s.channels + c, begin, end);
    const double o = g.output_weight[c * s.hidden + j];
    if (lane == 0) {
      write(g.grad_output_weight, c * s.hidden + j, w * sum_u + b * sum);
    }
    dw += o * sum_u;
    db += o * sum;
  }
  if (lane != 0) return;
  write(g.grad_hidden_weight, unit, dw);
  write(g.grad_hidden_bias, unit, db);
}

}  // namespace

template <typename T>
void features_forward(const FeatureMap<T>& map, const FeatureRows& rows,
                      const Rows& phi, cudaStream_t stream) {
  const int64_t items = rows.batch * rows.heads * rows.length * map.projections;
  if (items == 0) return;
  forward_kernel<<<static_cast<unsigned>(blocks_for(items, kThreads)), kThreads,
                   0, stream>>>(map, rows, phi);
  check_launch("feature_map");
}

int64_t feature_parts(const FeatureRows& rows) {
  const int64_t tiles = rows.batch * blocks_for(rows.length, kBackwardTokens);
  const int64_t wanted = blocks_for(512, rows.heads > 0 ? rows.heads : 1);
  return tiles < 1 ? 1 : (tiles < wanted ? tiles : wanted);
}

template <typename T>
void features_backward(const FeatureMap<T>& map, const FeatureRows& rows,
                       const Rows& grad_phi, const Rows& grad_x, T* partials,
                       int64_t parts, cudaStream_t stream) {
  const int64_t size = feature_sums_size(map);
  cudaMemsetAsync(partials, 0, rows.heads * parts * size * sizeof(T), stream);
  if (rows.batch * rows.heads * rows.length == 0) return;
  const auto shared = static_cast<size_t>(kBackwardTokens * map.projections *
                                          (2 * sizeof(T) + sizeof(int)));
  cudaFuncSetAttribute(backward_kernel<T>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(shared));
  const dim3 grid(static_cast<unsigned>(parts),
                  static_cast<unsigned>(rows.heads));
  backward_kernel<<<grid, kThreads, shared, stream>>>(map, rows, grad_phi,
                                                      grad_x, partials, size);
  check_launch("feature_map_backward");
}

template <typename T>
void feature_gradients(const FeatureMap<T>& map,
                       const FeatureGradients<T>& gradients,
                       cudaStream_t stream) {
  const int64_t size = feature_sums_size(map, gradients.knots);
  const int64_t weight_heads = map.per_head ? gradients.heads : 1;
  const dim3 grid(static_cast<unsigned>(blocks_for(size, 32)),
                  static_cast<unsigned>(weight_heads));
  if (weight_heads > 0) {
    launch_after(
        reduce_kernel<T>, grid, kReduceGroups * 32, 0, stream,
        "feature gradients, sums", gradients, size,
        sum_segments(map.shape, gradients.knots) * 2 * map.shape.channels,
        map.per_head);
  }
  const int64_t items =
      std::max(weight_heads * map.projections * (map.width + 1),
               32 * (map.shape.knots + map.shape.channels));
  launch_after(gradients_kernel<T>,
               dim3(static_cast<unsigned>(blocks_for(items, kThreads))),
               kThreads, 0, stream, "feature gradients", map, gradients, size,
               weight_heads);
}

#define LUNA_INSTANTIATE(T)                                                    \
  template void features_forward<T>(const FeatureMap<T>&, const FeatureRows&,  \
                                    const Rows&, cudaStream_t);                \
  template void features_backward<T>(const FeatureMap<T>&, const FeatureRows&, \
                                     const Rows&, const Rows&, T*, int64_t,    \
                                     cudaStream_t);                            \
  template void feature_gradients<T>(                                          \
      const FeatureMap<T>&, const FeatureGradients<T>&, cudaStream_t);
LUNA_INSTANTIATE(float)
LUNA_INSTANTIATE(double)
#undef LUNA_INSTANTIATE

}  // namespace luna::cuda
