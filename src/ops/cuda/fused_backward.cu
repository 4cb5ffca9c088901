// The fused backward of one side: queries, or keys and values.
//
// A tile: u and y S^T, phi by look-up, du in the thread that made u. Then, all
// at once, dx = du W, dW += x^T du and (queries) dS += phi^T y.
//
// Sums of g and g u per segment and channel: 32-bit integers in shared memory,
// so that the order of additions does not matter. Their unit follows the
// largest number the block has met: its warpgroups take their tiles in rounds,
// and each waits for the others' largest before it adds its own. 2^14 units
// are at least that number, and 2^16 numbers are added before the sums are
// put away, so nothing can overflow.

#include "ops/cuda/fused.cuh"

namespace luna::cuda {
namespace fused {
namespace {

constexpr int kGroups = 3;
constexpr int kWarps = kGroups * 4;
constexpr float kUnits = 16384.f;
constexpr int kRounds = (1 << 16) / (kGroups * kTokens * kProjections);
using BackwardStages = Stages<2, 2>;

struct Layout {
  static constexpr int kExtra = kGroups * BackwardStages::kBytes;
  static constexpr int kState = kExtra + kGroups * kTileBytes;
  static constexpr int kSlopes = kState + kGroups * kTileBytes;  // du
  static constexpr int kLast = kSlopes + kGroups * kNarrowBytes;
  static constexpr int kProjection = kLast + kGroups * kNarrowBytes;
  static constexpr int kBack = kProjection + 2048;
  static constexpr int kZ = kBack + 2048;
  static constexpr int kTops = kZ + kGroups * kFeatures * 4;
  static constexpr int kBarrier = kTops + 32;
  static constexpr int kControl = kBarrier + 16;
  static constexpr int kTable =
      kControl +
      (kGroups * static_cast<int>(sizeof(BackwardStages::Control)) + 15) / 16 *
          16;
  __host__ __device__ explicit Layout(const TableShape& shape)
      : segments(static_cast<int>(shape.knots) + 1),
        columns(segments + (segments % 2 == 0 ? 1 : 0)),
        sums(kTable + (static_cast<int>(Table::bytes(shape)) + 15) / 16 * 16),
        total(sums + 2 * kChannels * columns * 4) {}
  int segments, columns, sums, total;
};

/// The least power of two >= x; 0 for 0.
__device__ __forceinline__ float power_above(float x) {
  if (!(x > 0.f)) return 0.f;
  return exp2f(ceilf(log2f(x)));
}

template <bool kKeys>
__global__ void __launch_bounds__(kGroups* kGroup, 1)
    backward_kernel(const __grid_constant__ FusedBackward p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = threadIdx.x / kGroup, lane = threadIdx.x % 32;
  const int warp = threadIdx.x % kGroup / 32, g = lane / 4, t = lane % 4;
  const int worker = group * gridDim.x + blockIdx.x;
  const Layout layout(p.map.shape);
  unsigned char* own = memory + group * BackwardStages::kBytes;
  BackwardStages stages(own,
                        reinterpret_cast<BackwardStages::Control*>(
                            memory + Layout::kControl)[group],
                        p.tiles, &p.x, &p.y);
  const uint32_t round_barrier = shared_address(memory + Layout::kBarrier);
  if (threadIdx.x % kGroup == 0) stages.init();
  if (threadIdx.x == 0) {
    barrier_init(round_barrier, kWarps);
    barrier_init_fence();
  }
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x % kGroup == 0) stages.begin(worker);
  Table table(p.map, memory + Layout::kTable);
  table.build(p.map);
  // Features by tokens (queries), or the state for dv (keys).
  unsigned char* extra = memory + Layout::kExtra + group * kTileBytes;
  unsigned char* state = memory + Layout::kState + group * kTileBytes;
  unsigned char* slopes = memory + Layout::kSlopes + group * kNarrowBytes;
  unsigned char* last = memory + Layout::kLast + group * kNarrowBytes;
  auto* z = reinterpret_cast<float*>(memory + Layout::kZ) + group * kFeatures;
  auto* tops = reinterpret_cast<int*>(memory + Layout::kTops);
  auto* sums = reinterpret_cast<int*>(memory + layout.sums);
  const int numbers = 2 * kChannels * layout.columns;
  if (group == 0) {
    write_projection(p.map, 0, true, memory + Layout::kProjection);
    write_projection(p.map, 0, false, memory + Layout::kBack);
  }
  for (int i = threadIdx.x; i < numbers; i += blockDim.x) sums[i] = 0;
  if (threadIdx.x < 6) tops[threadIdx.x] = 0;
  fence_async();
  __syncthreads();
  const uint32_t w = shared_address(memory + Layout::kProjection);
  const uint32_t back = shared_address(memory + Layout::kBack);
  const float bias[2] = {p.map.bias[2 * t], p.map.bias[2 * t + 1]};
  const int64_t size = static_cast<int64_t>(layout.segments) * 2 * kChannels +
                       kProjections * (kWidth + 1);
  float* part = p.sums + blockIdx.x * size;

  float unit[2] = {};  // what kUnits of the sums' units are
  int rounds_added = 0;
  bool put_away = false;
  const auto announce = [&](int round, float top, float top_u) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
      top_u = fmaxf(top_u, __shfl_xor_sync(0xffffffffu, top_u, i));
    }
    if (lane == 0) {
      atomicMax(&tops[round % 3 * 2], __float_as_int(top));
      atomicMax(&tops[round % 3 * 2 + 1], __float_as_int(top_u));
      arrive(round_barrier);
    }
    __syncwarp();
  };
  // Older sums move to a larger unit.
  const auto agree = [&](int round) {
    wait(round_barrier, round & 1);
    const float seen[2] = {__int_as_float(tops[round % 3 * 2]),
                           __int_as_float(tops[round % 3 * 2 + 1])};
    if (threadIdx.x < 2) tops[(round + 2) % 3 * 2 + threadIdx.x] = 0;
    if (seen[0] > unit[0] || seen[1] > unit[1]) {
      int shift[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float larger = fmaxf(unit[i], power_above(seen[i]));
        shift[i] = unit[i] > 0.f && larger < INFINITY
                       ? static_cast<int>(log2f(larger) - log2f(unit[i]) + .5f)
                       : 0;
        unit[i] = larger;
      }
      for (int i = threadIdx.x; i < numbers; i += blockDim.x) {
        const int s = shift[i / (kChannels * layout.columns)];
        if (s > 0) sums[i] = s > 30 ? 0 : (sums[i] + (1 << (s - 1))) >> s;
      }
      __syncthreads();
    }
  };
  // To the block's own part, in float32, and back to 0.
  const auto put = [&] {
    __syncthreads();
    const float scale = unit[0] / kUnits * p.map.factor;
    const float scale_u = unit[1] / kUnits * p.map.factor;
    const bool finite = unit[0] < INFINITY && unit[1] < INFINITY;
    for (int i = threadIdx.x; i < layout.segments * 2 * kChannels;
         i += blockDim.x) {
      const int segment = i / (2 * kChannels), column = i % (2 * kChannels);
      int* at = sums + column * layout.columns + segment;
      float x =
          static_cast<float>(*at) * (column < kChannels ? scale : scale_u);
      if (!finite) x = NAN;
      *at = 0;
      part[i] = put_away ? part[i] + x : x;
    }
    put_away = true;
    rounds_added = 0;
    __syncthreads();
  };

  Sums state_sums;
  float grad_w[4] = {}, grad_b[2] = {};
  const int count = stages.control.count;
  const int rounds = run_length(p.tiles, all_tiles(p.tiles));
  for (int round = 0; round < count; ++round) {
    const Tile tile = stages.arrived();
    unsigned char* rows = own + stages.slot * 2 * kTileBytes;
    const bool clear = tile.count < kTokens && p.tiles.tiles.begin != nullptr;
    if (tile.first || clear) {
      group_barrier(group);
      if (tile.first) {
        const float* from =
            p.states + static_cast<int64_t>(tile.state) * kFeatures * kLd;
        write_state(from, state, kKeys ? extra : nullptr);
        if (threadIdx.x % kGroup < kFeatures) {
          z[threadIdx.x % kGroup] = from[threadIdx.x % kGroup * kLd + kWidth];
        }
      }
      if (clear) {
        clear_rows(rows, tile.count);
        clear_rows(rows + kTileBytes, tile.count);
      }
      fence_async();
      group_barrier(group);
    }
    float projected[8], c[32], u[4];
    products_begin();
    project(stages.x_rows(), w, projected);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<false, false>(c, deep_operand(stages.y_rows(), k),
                             deep_operand(shared_address(state), k), k > 0);
    }
    products_commit();
    const int row = 16 * warp + g;
    float factor[2];  // of a row: 1 / den, or its weight
    bool guard[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool valid = row + 8 * r < tile.count;
      const float x = valid ? factor_of(p.row, tile.batch, tile.head,
                                        tile.row + row + 8 * r)
                            : 0.f;
      factor[r] = kKeys ? x : (valid ? 1.f / guarded(x, p.eps) : 0.f);
      guard[r] = !(fabsf(x) > p.eps);
    }
    products_wait<1>();
    finish_projection(projected, bias, u);
    int segment[4];
    float point[4];
    table.find(u, segment, point);
    uint32_t phi[2][2][4];
    uint4 slope[2][2];
    float slope_unit[2][2];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      table.look_up(segment[n], u[n], point[n], kKeys ? 1.f : factor[n / 2],
                    phi[n / 2][n % 2], slope[n / 2][n % 2],
                    slope_unit[n / 2][n % 2]);
    }
    if (round > 0) stages.wait_for_others();
    float dy[32];
    if constexpr (kKeys) {
      products_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int m = k / 2, j = 2 * (k % 2);
        multiply<true>(dy, phi[0][m][j], phi[1][m][j], phi[0][m][j + 1],
                       phi[1][m][j + 1], wide_operand(shared_address(extra), k),
                       k > 0);
      }
      products_commit();
      products_wait<1>();
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          *reinterpret_cast<uint4*>(extra + (row + 8 * r) * kRowBytes +
                                    ((2 * t + m) ^ g) * 16) =
              make_uint4(phi[r][m][0], phi[r][m][1], phi[r][m][2],
                         phi[r][m][3]);
        }
      }
      products_wait<0>();
    }
    float du[2][2], top = 0.f, top_u = 0.f;
    float4 at_z[2][2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        at_z[m][i] = reinterpret_cast<const float4*>(z)[(2 * t + m) * 2 + i];
      }
    }
    const auto z_at = [&](int m, int channel) {
      const float4& x = at_z[m][channel / 4];
      return channel % 4 == 0   ? x.x
             : channel % 4 == 1 ? x.y
             : channel % 4 == 2 ? x.z
                                : x.w;
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float d = 1.f;  // what the normaliser counts
      const auto dot = [&] {
        float x = 0.f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          x = fmaf(low_of(phi[r][j / 4][j % 4]), c[4 * j + 2 * r], x);
          x = fmaf(high_of(phi[r][j / 4][j % 4]), c[4 * j + 2 * r + 1], x);
        }
        x += __shfl_xor_sync(0xffffffffu, x, 1);
        return x + __shfl_xor_sync(0xffffffffu, x, 2);
      };
      if (!kKeys) {
        const float x = dot();
        d = guard[r] ? 0.f : -x;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = c[4 * j + 2 * r + e];
          x = fmaf(d, z_at(j / 4, 2 * (j % 4) + e), x);
        }
      }
      if (kKeys && p.grad_weight != nullptr) {
        const float x = dot();
        if (t == 0 && row + 8 * r < tile.count) {
          p.grad_weight[tile.batch * p.grad_weight_batch +
                        tile.head * p.grad_weight_head + tile.row + row +
                        8 * r] = x;
        }
      }
      if (!kKeys && t == 0) {
        const float high = high_part(d);
        *reinterpret_cast<uint4*>(last + (row + 8 * r) * 16) =
            make_uint4(pack(high, d - high), 0, 0, 0);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t pairs[4] = {slope[r][m].x, slope[r][m].y, slope[r][m].z,
                                   slope[r][m].w};
        float total = 0.f, most = 0.f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float* x = &c[4 * (4 * m + i) + 2 * r];
          const float2 s =
              __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float feature =
                e == 0 ? low_of(phi[r][m][i]) : high_of(phi[r][m][i]);
            x[e] *= factor[r];
            if (feature == 0.f && table.least == 0.f) x[e] = 0.f;
            total = fmaf(x[e], e == 0 ? s.x : s.y, total);
            most = fmaxf(most, fabsf(x[e]));
          }
        }
        du[r][m] = total * slope_unit[r][m];
        // fmaxf drops NaN: keep what is not a number as infinity.
        if (!(fabsf(total) <= 3e38f)) most = INFINITY;
        top = fmaxf(top, most);
        top_u = fmaxf(top_u, most * fabsf(u[2 * r + m]));
        grad_b[m] += du[r][m];
      }
    }
    announce(round, top, top_u);
    uint32_t steps[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      steps[r] = pack(du[r][0], du[r][1]);
      *reinterpret_cast<uint32_t*>(slopes + (row + 8 * r) * 16 + 4 * t) =
          steps[r];
    }
    fence_async();
    if constexpr (kKeys) {  // dv
      products_wait<0>();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (row + 8 * r >= tile.count) continue;
        store_row(
            p.grad_y,
            row_at(p.grad_y, tile.batch, tile.head, tile.row + row + 8 * r), dy,
            r, factor[r]);
      }
    }
    group_barrier(group);
    float dx[32];
    products_begin();
    multiply<true>(dx, steps[0], steps[1], steps[0], steps[1],
                   wide_operand(back, 0), 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<true, true>(grad_w, wide_operand(stages.x_rows(), k),
                           narrow_operand(shared_address(slopes), k), 1);
      if constexpr (!kKeys) {
        const uint64_t a = wide_operand(shared_address(extra), k);
        multiply<true, true>(state_sums.s, a, wide_operand(stages.y_rows(), k),
                             1);
        multiply<true, true>(state_sums.z, a,
                             narrow_operand(shared_address(last), k), 1);
      }
    }
    products_commit();
    agree(round);
    const float to_units = unit[0] > 0.f ? kUnits / unit[0] : 0.f;
    const float to_units_u = unit[1] > 0.f ? kUnits / unit[1] : 0.f;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float x = u[n] * to_units_u;
      int* at = sums + segment[n];
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const float y = c[4 * (4 * (n % 2) + i / 2) + 2 * (n / 2) + i % 2];
        if (y == 0.f) continue;  // about half: quicker than by predicate
        atomicAdd(at + i * layout.columns, __float2int_rn(y * to_units));
        atomicAdd(at + (kChannels + i) * layout.columns, __float2int_rn(y * x));
      }
    }
    __syncwarp();
    products_wait<0>();
    stages.release();
    stages.advance();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= tile.count) continue;
      store_row(p.grad_x,
                row_at(p.grad_x, tile.batch, tile.head, tile.row + row + 8 * r),
                dx, r, 1.f);
    }
    if (!kKeys && tile.last) {
      state_sums.write(tile, p.results, p.parts, worker);
    }
    if (++rounds_added == kRounds) put();
  }
  for (int round = count; round < rounds; ++round) {  // the others' tiles
    announce(round, 0.f, 0.f);
    agree(round);
    if (++rounds_added == kRounds) put();
  }
  if (rounds_added > 0 || !put_away) put();

  // dW and db of all warpgroups, where stages were.
  __syncthreads();
  auto* all = reinterpret_cast<float*>(memory);  // [groups][8][65]
  constexpr int kRow = kWidth + 1;
  float* mine = all + group * kProjections * kRow;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mine[(2 * t + i % 2) * kRow + 16 * warp + g + i / 2 * 8] = grad_w[i];
  }
  float* biases = all + kGroups * kProjections * kRow;  // [warps][8]
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    float x = grad_b[m];
    for (int i = 4; i < 32; i *= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    if (g == 0) biases[threadIdx.x / 32 * kProjections + 2 * t + m] = x;
  }
  __syncthreads();
  float* weights = part + static_cast<int64_t>(layout.segments) * 2 * kChannels;
  for (int i = threadIdx.x; i < kProjections * kRow; i += blockDim.x) {
    const int m = i / kRow, column = i % kRow;
    float x = 0.f;
    if (column < kWidth) {
      for (int j = 0; j < kGroups; ++j) x += all[j * kProjections * kRow + i];
      weights[m * kWidth + column] = x;
    } else {
      for (int j = 0; j < kWarps; ++j) x += biases[j * kProjections + m];
      weights[kProjections * kWidth + m] = x;
    }
  }
}

}  // namespace
}  // namespace fused

bool fused_fits(const TableShape& shape) {
  using fused::device_attribute;
  const auto most = static_cast<size_t>(
      device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         shape.knots < 65536 && fused::forward_memory(shape) <= most &&
         static_cast<size_t>(fused::Layout(shape).total) <= most;
}

int64_t fused_blocks() { return fused::multiprocessors(); }
int64_t fused_backward_workers() {
  return fused::multiprocessors() * fused::kGroups;
}

void fused_backward(bool keys, const FusedBackward& p, cudaStream_t stream) {
  fused::launch(
      keys ? fused::backward_kernel<true> : fused::backward_kernel<false>,
      static_cast<unsigned>(fused_blocks()), fused::kGroups * fused::kGroup,
      static_cast<size_t>(fused::Layout(p.map.shape).total), p, stream,
      "fused_backward");
}

}  // namespace luna::cuda
