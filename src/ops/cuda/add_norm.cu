// Lanes of a warp share a row, each with runs of neighbouring columns in
// registers: eight where the width allows it, so that few instructions come on
// a number. Every number is read and written once.

#include "ops/cuda/add_norm.h"

#include <algorithm>

#include "ops/cuda/parts.cuh"
#include "ops/cuda/runs.cuh"

namespace luna::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

/// `kLanes` lanes share a row, a lane has up to `kRuns` runs of `kRun` columns:
/// lane l the runs l, l + kLanes, ...
template <int kRun_, int kLanes_, int kRuns_>
struct Layout {
  static constexpr int kRun = kRun_, kLanes = kLanes_, kRuns = kRuns_;
  static constexpr int kRows = 32 / kLanes;  ///< of a warp
  using Row = Run<kRun>[kRuns];

  __device__ static __forceinline__ float sum_of_row(float x) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      x += __shfl_xor_sync(0xffffffffu, x, step);
    }
    return x;
  }

  struct Moments {
    float mean, rstd;
  };
  /// Zeros beyond the row.
  __device__ static __forceinline__ Moments moments(const Row& row, int lane,
                                                    int runs, float width,
                                                    float eps) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) sum += row[j].x[i];
    }
    const float mean = sum_of_row(sum) / width;
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      if (lane + kLanes * j >= runs) continue;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float off = row[j].x[i] - mean;
        squares += off * off;
      }
    }
    return {mean, rsqrtf(sum_of_row(squares) / width + eps)};
  }
};

template <typename Layout>
__global__ void __launch_bounds__(kThreads) forward_kernel(AddNorm a) {
  constexpr int kRun = Layout::kRun, kRuns = Layout::kRuns;
  const int lane = threadIdx.x % Layout::kLanes;
  const int runs = static_cast<int>(a.width / kRun);
  wait_for_previous_launch();
  allow_next_launch();
  const RowDropout dropout(a.dropout, ops::DropoutMap::kResidual);
  typename Layout::Row weight, bias;
#pragma unroll
  for (int j = 0; j < kRuns; ++j) {
    const int run = lane + Layout::kLanes * j;
    if (run >= runs) continue;
    weight[j].load(a.weight, run, a.x_type);
    bias[j].load(a.bias, run, a.x_type);
  }
  const int64_t warp =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t stride =
      static_cast<int64_t>(gridDim.x) * kWarps * Layout::kRows;
  for (int64_t first = warp * Layout::kRows; first < a.rows; first += stride) {
    // Rows beyond the last are zeros and left unwritten.
    const int64_t row = first + threadIdx.x % 32 / Layout::kLanes;
    const bool real = row < a.rows;
    typename Layout::Row s;
    RawRun<kRun> y[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      const int run = lane + Layout::kLanes * j;
      if (run >= runs || !real) continue;
      s[j].load(a.x, row * runs + run, a.x_type);
      if (a.y != nullptr) y[j].load(a.y, row * runs + run, a.y_type);
    }
    if (a.y != nullptr) {
      const uint64_t key = dropout.row_key(row);
#pragma unroll
      for (int j = 0; j < kRuns; ++j) {
        const int run = lane + Layout::kLanes * j;
        if (run >= runs || !real) continue;
        Run<kRun> more;
        more.set(y[j], a.y_type);
        more.drop(dropout, key, run);
#pragma unroll
        for (int i = 0; i < kRun; ++i) s[j].x[i] += more.x[i];
        s[j].store(a.sum, row * runs + run, a.x_type);
      }
    }
    const auto m =
        Layout::moments(s, lane, runs, static_cast<float>(a.width), a.eps);
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      const int run = lane + Layout::kLanes * j;
      if (run >= runs || !real) continue;
      Run<kRun> normed;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        normed.x[i] =
            (s[j].x[i] - m.mean) * m.rstd * weight[j].x[i] + bias[j].x[i];
      }
      normed.store(a.normed, row * runs + run, a.normed_type);
      if (a.low != nullptr) normed.store(a.low, row * runs + run, a.low_type);
    }
  }
}

/// A block's sum of each column, of what its warps' lanes hold.
template <typename Layout>
__device__ __forceinline__ void store_sums(
    typename Layout::Row& sums, int runs, float* to,
    float (&shared)[kWarps][Layout::kLanes * Layout::kRun]) {
  constexpr int kRun = Layout::kRun, kColumns = Layout::kLanes * kRun;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int j = 0; j < Layout::kRuns; ++j) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      float x = sums[j].x[i];
#pragma unroll
      for (int step = Layout::kLanes; step < 32; step *= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
      }
      if (lane < Layout::kLanes) shared[warp][lane * kRun + i] = x;
    }
    __syncthreads();
    const int column = j * kColumns + static_cast<int>(threadIdx.x);
    if (threadIdx.x < kColumns && column < runs * kRun) {
      float total = 0;
      for (int w = 0; w < kWarps; ++w) total += shared[w][threadIdx.x];
      to[column] = total;
    }
    __syncthreads();
  }
}

Parts sums_of(const AddNorm& a, int64_t blocks) {
  return {a.partials, blocks, 2 * a.width, a.gradients};
}

/// kLow: there is a gradient of `low`.
template <typename Layout, bool kLow>
__global__ void __launch_bounds__(kThreads, Layout::kRuns == 1 ? 3 : 1)
    backward_kernel(AddNorm a) {
  constexpr int kRun = Layout::kRun, kRuns = Layout::kRuns;
  __shared__ float columns[kWarps][Layout::kLanes * kRun];
  const int lane = threadIdx.x % Layout::kLanes;
  const int runs = static_cast<int>(a.width / kRun);
  const float width = static_cast<float>(a.width);
  const RowDropout dropout(a.dropout, ops::DropoutMap::kResidual);
  typename Layout::Row weight, grad_weight, grad_bias;
#pragma unroll
  for (int j = 0; j < kRuns; ++j) {
    const int run = lane + Layout::kLanes * j;
    if (run < runs) weight[j].load(a.weight, run);
  }
  const int64_t warp =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t stride =
      static_cast<int64_t>(gridDim.x) * kWarps * Layout::kRows;
  for (int64_t first = warp * Layout::kRows; first < a.rows; first += stride) {
    const int64_t row = first + threadIdx.x % 32 / Layout::kLanes;
    const bool real = row < a.rows;
    typename Layout::Row s, beside;
    RawRun<kRun> raw[kRuns], raw_low[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      const int run = lane + Layout::kLanes * j;
      if (run >= runs || !real) continue;
      const int64_t at = row * runs + run;
      s[j].load(a.sum, at);
      if (a.grad_sum != nullptr) beside[j].load(a.grad_sum, at);
      if (a.grad_normed != nullptr) {
        raw[j].load(a.grad_normed, at, a.normed_type);
      }
      if constexpr (kLow) raw_low[j].load(a.grad_low, at, a.low_type);
    }
    const auto m = Layout::moments(s, lane, runs, width, a.eps);
    typename Layout::Row up;
    float inner = 0, along = 0;
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      up[j].set(raw[j], a.normed_type);
      if constexpr (kLow) {
        Run<kRun> more;
        more.set(raw_low[j], a.low_type);
#pragma unroll
        for (int i = 0; i < kRun; ++i) up[j].x[i] += more.x[i];
      }
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        float &u = up[j].x[i], &x = s[j].x[i];
        x = (x - m.mean) * m.rstd;
        grad_weight[j].x[i] += u * x;
        grad_bias[j].x[i] += u;
        u *= weight[j].x[i];
        inner += u;
        along += u * x;
      }
    }
    inner = Layout::sum_of_row(inner) / width;
    along = Layout::sum_of_row(along) / width;
    const uint64_t key = dropout.row_key(row);
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      const int run = lane + Layout::kLanes * j;
      if (run >= runs || !real) continue;
      const int64_t at = row * runs + run;
      Run<kRun> g;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        g.x[i] =
            m.rstd * (up[j].x[i] - inner - s[j].x[i] * along) + beside[j].x[i];
      }
      g.store(a.grad_x, at, Scalar::kFloat);
      if (a.grad_y == nullptr) continue;
      g.drop(dropout, key, run);
      g.store(a.grad_y, at, a.y_type);
    }
  }
  float* const to = a.partials + blockIdx.x * 2 * a.width;
  store_sums<Layout>(grad_weight, runs, to, columns);
  store_sums<Layout>(grad_bias, runs, to + a.width, columns);
}

/// Calls `body` with the layout that has the fewest lanes for the width.
template <typename Body>
auto with_layout(int64_t width, Body body) {
  if (width % 8 != 0) {
    if (width <= 64) return body.template operator()<Layout<2, 32, 1>>();
    if (width <= 256) return body.template operator()<Layout<2, 32, 4>>();
    return body.template operator()<Layout<2, 32, 16>>();
  }
  if (width <= 64) return body.template operator()<Layout<8, 8, 1>>();
  if (width <= 128) return body.template operator()<Layout<8, 16, 1>>();
  if (width <= 256) return body.template operator()<Layout<8, 32, 1>>();
  if (width <= 512) return body.template operator()<Layout<8, 32, 2>>();
  return body.template operator()<Layout<8, 32, 4>>();
}

template <typename Layout>
int64_t blocks_of(int64_t rows, int64_t most) {
  constexpr int64_t kOfBlock = kWarps * Layout::kRows;
  return std::clamp<int64_t>((rows + kOfBlock - 1) / kOfBlock, 1, most);
}

}  // namespace

int64_t add_norm_parts(int64_t rows, int64_t width) {
  return with_layout(width, [&]<typename Layout>() {
    static const int64_t most =
        blocks_at_once(backward_kernel<Layout, false>, kThreads, 0);
    return blocks_of<Layout>(rows, most);
  });
}

void add_norm_forward(const AddNorm& a, cudaStream_t stream) {
  with_layout(a.width, [&]<typename Layout>() {
    static const int64_t most =
        blocks_at_once(forward_kernel<Layout>, kThreads, 0);
    launch_after(forward_kernel<Layout>,
                 static_cast<unsigned>(blocks_of<Layout>(a.rows, most)),
                 kThreads, 0, stream, "add_norm", a);
  });
}

void add_norm_backward(const AddNorm& a, cudaStream_t stream) {
  with_layout(a.width, [&]<typename Layout>() {
    const int64_t blocks = add_norm_parts(a.rows, a.width);
    launch_and_sum(a.grad_low != nullptr ? backward_kernel<Layout, true>
                                         : backward_kernel<Layout, false>,
                   blocks, kThreads, 0, sums_of(a, blocks), stream,
                   "add_norm_backward", a);
  });
}

}  // namespace luna::cuda
