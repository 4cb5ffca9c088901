// Walks: a warp has 64 channels, two a lane, and goes along a run of tokens
// with the neighbours that a token hears in registers: one step brings one new
// column of them, and each number is read `rows` times, not rows * taps. The
// columns' places in the registers turn, so that nothing is moved. All lanes
// stand at the same token: what is beyond the end of a row is a matter for the
// whole warp. The weight's gradient is summed by block, and the blocks' sums in
// their order. That is for taps of the sizes below, even widths and no float64;
// for others plain kernels look every neighbour up.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/local_sum.h"

namespace luna::cuda {
namespace {

/// Where a token stands: so many before and behind it in its row, and, of a
/// picture, so many rows above and below.
struct Place {
  int64_t left, right, above, below;
};

__device__ Place place_of(const LocalSum& args, int64_t token) {
  int64_t begin = token / args.length * args.length;
  int64_t length = args.length;
  if (args.starts != nullptr) {  // the last that begins at or before it
    int64_t low = 0, high = args.sequences - 1;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (args.starts[middle] <= token) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    begin = args.starts[low];
    length = args.starts[low + 1] - begin;
  }
  const int64_t place = token - begin;
  if (args.columns == 0) return {place, length - 1 - place, 0, 0};
  const int64_t column = place % args.columns, row = place / args.columns;
  return {column, args.columns - 1 - column, row,
          length / args.columns - 1 - row};
}

template <typename T>
struct Pair;
template <>
struct Pair<float> {
  using Type = float2;
  static __device__ float2 floats(float2 x) { return x; }
  static __device__ float2 of(float2 x) { return x; }
};
template <>
struct Pair<__half> {
  using Type = __half2;
  static __device__ float2 floats(__half2 x) { return __half22float2(x); }
  static __device__ __half2 of(float2 x) { return __float22half2_rn(x); }
};
template <>
struct Pair<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  static __device__ float2 floats(__nv_bfloat162 x) {
    return __bfloat1622float2(x);
  }
  static __device__ __nv_bfloat162 of(float2 x) {
    return __float22bfloat162_rn(x);
  }
};

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kRun = 32;  // tokens of a walk, at most

/// The walks of a tensor: pictures' rows, or all tokens, in runs.
struct Walks {
  __host__ __device__ explicit Walks(const LocalSum& args)
      : row(args.columns > 0 ? args.columns : args.count),
        of_row((row + kRun - 1) / kRun),
        count(args.count / row * of_row) {}
  __device__ int64_t first(int64_t walk) const {
    return walk / of_row * row + walk % of_row * kRun;
  }
  __device__ int length(int64_t walk) const {
    return static_cast<int>(
        min(static_cast<int64_t>(kRun), row - walk % of_row * kRun));
  }
  int64_t row, of_row, count;
};

/// Calls body(token, window, first, from, to) for each token of a walk:
/// window[i][(first + j) % kTaps] is the neighbour by tap (i, j); those of
/// columns `from` to `to` are there, and those of rows that are not are 0.
template <typename T, int kRows, int kTaps, typename Body>
__device__ __forceinline__ void walk(const LocalSum& args, int64_t start,
                                     int length, int64_t pair, bool real,
                                     const Body& body) {
  using Two = typename Pair<T>::Type;
  constexpr int kHalf = kTaps / 2;
  const auto* x = static_cast<const Two*>(args.x) + pair;
  const int64_t stride = args.stride / 2;
  Place place = place_of(args, start);
  float2 window[kRows][kTaps];
  const auto load = [&](int64_t column_token, int slot) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int down = i - kRows / 2;
      const int64_t token = column_token + down * args.columns;
      const bool there = -down <= place.above && down <= place.below &&
                         token >= 0 && token < args.count && real;
      window[i][slot] =
          there ? Pair<T>::floats(x[token * stride]) : float2{0, 0};
    }
  };
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) load(start + j - kHalf, j);
  for (int base = 0; base < length; base += kTaps) {
#pragma unroll
    for (int u = 0; u < kTaps; ++u) {
      if (base + u >= length) break;
      const int64_t token = start + base + u;
      load(token + kHalf, (u + kTaps - 1) % kTaps);
      body(token, window, u,
           kHalf - static_cast<int>(min(place.left, int64_t{kHalf})),
           kHalf + static_cast<int>(min(place.right, int64_t{kHalf})));
      if (place.right == 0) {
        if (token + 1 < args.count) place = place_of(args, token + 1);
      } else {
        ++place.left;
        --place.right;
      }
    }
  }
}

template <typename T, int kRows, int kTaps>
__global__ void __launch_bounds__(kThreads) forward_walks(const LocalSum args) {
  using Two = typename Pair<T>::Type;
  const Walks walks(args);
  const int64_t number =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (number >= walks.count) return;
  const int64_t pair = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x % 32;
  const bool real = 2 * pair < args.width;
  float2 weight[kRows][kTaps];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const auto* from = static_cast<const float2*>(args.weight);
      weight[i][j] =
          real ? from[(i * kTaps + j) * (args.width / 2) + pair] : float2{0, 0};
    }
  }
  auto* out = static_cast<Two*>(args.out) + pair;
  walk<T, kRows, kTaps>(
      args, walks.first(number), walks.length(number), pair, real,
      [&](int64_t token, const auto& window, int first, int from, int to) {
        float2 sum = {0, 0};
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
          if (j < from || j > to) continue;
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            const float2 v = window[i][(first + j) % kTaps];
            sum.x = fmaf(weight[i][j].x, v.x, sum.x);
            sum.y = fmaf(weight[i][j].y, v.y, sum.y);
          }
        }
        if (real) out[token * (args.width / 2)] = Pair<T>::of(sum);
      });
}

template <typename T, int kRows, int kTaps>
__global__ void __launch_bounds__(kThreads)
    backward_walks(const LocalSum args) {
  using Two = typename Pair<T>::Type;
  const Walks walks(args);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t pair = static_cast<int64_t>(blockIdx.y) * 32 + lane;
  const bool real = 2 * pair < args.width;
  const auto* grad = static_cast<const Two*>(args.grad) + pair;
  float2 sums[kRows][kTaps] = {};
  for (int64_t number = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
       number < walks.count;
       number += static_cast<int64_t>(gridDim.x) * kWarps) {
    walk<T, kRows, kTaps>(
        args, walks.first(number), walks.length(number), pair, real,
        [&](int64_t token, const auto& window, int first, int from, int to) {
          const float2 up =
              real ? Pair<T>::floats(grad[token * (args.width / 2)])
                   : float2{0, 0};
#pragma unroll
          for (int j = 0; j < kTaps; ++j) {
            if (j < from || j > to) continue;
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
              const float2 v = window[i][(first + j) % kTaps];
              sums[i][j].x = fmaf(up.x, v.x, sums[i][j].x);
              sums[i][j].y = fmaf(up.y, v.y, sums[i][j].y);
            }
          }
        });
  }
  __shared__ float2 parts[kWarps][32];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kTaps; ++j) {
#pragma unroll
      for (int a = 0; a < kRows; ++a) {
#pragma unroll
        for (int b = 0; b < kTaps; ++b) {
          if (a == i && b == j) parts[warp][lane] = sums[a][b];
        }
      }
      __syncthreads();
      if (warp == 0 && real) {
        float2 sum = parts[0][lane];
        for (int w = 1; w < kWarps; ++w) {
          sum.x += parts[w][lane].x;
          sum.y += parts[w][lane].y;
        }
        const int64_t at =
            (static_cast<int64_t>(blockIdx.x) * kRows + i) * kTaps + j;
        static_cast<float2*>(args.partials)[at * (args.width / 2) + pair] = sum;
      }
      __syncthreads();
    }
  }
}

// The plain kernels.

constexpr int kChannels = 64, kGroups = 4, kTokens = 64;

template <typename T>
struct Sum {
  using Type = float;
};
template <>
struct Sum<double> {
  using Type = double;
};

/// How far away the neighbour by a tap is.
struct Neighbour {
  int64_t away;
  bool there;
};
__device__ Neighbour neighbour(const LocalSum& args, const Place& place,
                               int tap) {
  const int down = tap / args.taps - args.rows / 2;
  const int right = tap % args.taps - args.taps / 2;
  return {down * args.columns + right,
          -down <= place.above && down <= place.below && -right <= place.left &&
              right <= place.right};
}

template <typename T>
__global__ void plain_forward(const LocalSum args) {
  using S = typename Sum<T>::Type;
  const int64_t channel =
      static_cast<int64_t>(blockIdx.y) * kChannels + threadIdx.x;
  if (channel >= args.width) return;
  const T* x = static_cast<const T*>(args.x) + channel;
  const S* weight = static_cast<const S*>(args.weight) + channel;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int64_t end = min(first + kTokens, args.count);
  for (int64_t token = first + threadIdx.y; token < end; token += kGroups) {
    const Place place = place_of(args, token);
    S sum = 0;
    for (int tap = 0; tap < args.rows * args.taps; ++tap) {
      const Neighbour other = neighbour(args, place, tap);
      if (!other.there) continue;
      sum += weight[tap * args.width] *
             static_cast<S>(x[(token + other.away) * args.stride]);
    }
    static_cast<T*>(args.out)[token * args.width + channel] =
        static_cast<T>(sum);
  }
}

/// A thread has every fourth tap of a channel, over a run of tokens.
template <typename T>
__global__ void plain_backward(const LocalSum args) {
  using S = typename Sum<T>::Type;
  const int64_t channel =
      static_cast<int64_t>(blockIdx.y) * kChannels + threadIdx.x;
  if (channel >= args.width) return;
  const T* x = static_cast<const T*>(args.x) + channel;
  const T* grad = static_cast<const T*>(args.grad) + channel;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int64_t end = min(first + kTokens, args.count);
  const int taps = args.rows * args.taps;
  for (int tap = threadIdx.y; tap < taps; tap += kGroups) {
    S sum = 0;
    for (int64_t token = first; token < end; ++token) {
      const Neighbour other = neighbour(args, place_of(args, token), tap);
      if (!other.there) continue;
      sum += static_cast<S>(grad[token * args.width]) *
             static_cast<S>(x[(token + other.away) * args.stride]);
    }
    const int64_t at = static_cast<int64_t>(blockIdx.x) * taps + tap;
    static_cast<S*>(args.partials)[at * args.width + channel] = sum;
  }
}

template <typename Body>
void by_type(Scalar type, const Body& body) {
  switch (type) {
    case Scalar::kFloat:
      return body(float());
    case Scalar::kDouble:
      return body(double());
    case Scalar::kHalf:
      return body(__half());
    case Scalar::kBFloat16:
      return body(__nv_bfloat16());
  }
}

template <int kRows_, int kTaps_>
struct Taps {
  static constexpr int kRows = kRows_, kTaps = kTaps_;
};

/// Calls body with the sizes of the taps if there are walks for them.
template <typename Body>
bool by_taps(const LocalSum& args, const Body& body) {
  bool done = false;
  const auto offer = [&](auto taps) {
    if (done || args.rows != taps.kRows || args.taps != taps.kTaps) return;
    body(taps);
    done = true;
  };
  if (args.type == Scalar::kDouble || args.width % 2 != 0 ||
      args.stride % 2 != 0) {
    return false;
  }
  offer(Taps<1, 3>());
  offer(Taps<1, 5>());
  offer(Taps<1, 7>());
  offer(Taps<3, 3>());
  offer(Taps<5, 5>());
  return done;
}

bool has_walks(const LocalSum& args) {
  return by_taps(args, [](auto) {});
}

dim3 walk_blocks(const LocalSum& args, int64_t most) {
  const int64_t wanted = (Walks(args).count + kWarps - 1) / kWarps;
  return dim3(static_cast<unsigned>(std::min(wanted, most)),
              static_cast<unsigned>((args.width + 63) / 64));
}

dim3 plain_blocks(const LocalSum& args) {
  return dim3(static_cast<unsigned>((args.count + kTokens - 1) / kTokens),
              static_cast<unsigned>((args.width + kChannels - 1) / kChannels));
}

constexpr int64_t kAll = (int64_t{1} << 31) - 1;

/// Blocks of backward walks: each adds up several.
int64_t backward_blocks() { return 4 * multiprocessors(); }

/// Calls body with T, which is not double.
template <typename Body>
void by_pair_type(Scalar type, const Body& body) {
  by_type(type, [&](auto number) {
    if constexpr (!std::is_same_v<decltype(number), double>) body(number);
  });
}

}  // namespace

int64_t local_sum_parts(const LocalSum& args) {
  return has_walks(args) ? walk_blocks(args, backward_blocks()).x
                         : plain_blocks(args).x;
}

void local_sum_forward(const LocalSum& args, cudaStream_t stream) {
  const bool walked = by_taps(args, [&](auto taps) {
    by_pair_type(args.type, [&](auto number) {
      forward_walks<decltype(number), taps.kRows, taps.kTaps>
          <<<walk_blocks(args, kAll), kThreads, 0, stream>>>(args);
    });
  });
  if (!walked) {
    by_type(args.type, [&](auto number) {
      plain_forward<decltype(number)>
          <<<plain_blocks(args), dim3(kChannels, kGroups), 0, stream>>>(args);
    });
  }
  check_launch("local_sum");
}

void local_sum_weight_backward(const LocalSum& args, cudaStream_t stream) {
  const bool walked = by_taps(args, [&](auto taps) {
    by_pair_type(args.type, [&](auto number) {
      backward_walks<decltype(number), taps.kRows, taps.kTaps>
          <<<walk_blocks(args, backward_blocks()), kThreads, 0, stream>>>(args);
    });
  });
  if (!walked) {
    by_type(args.type, [&](auto number) {
      plain_backward<decltype(number)>
          <<<plain_blocks(args), dim3(kChannels, kGroups), 0, stream>>>(args);
    });
  }
  check_launch("local_sum_weight_backward");
}

}  // namespace luna::cuda
