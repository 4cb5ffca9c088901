// The fused backward of one side: queries, or keys and values.
//
// A warp has 16 tokens: u = x W^T as in the forward, dphi = y S^T as the same
// threads hold phi, du in the thread that made u. dx = du W with du as its
// high and low bfloat16 parts; dW += du^T x by transposing du in registers.
//
// Sums of g and g u per segment and channel: 32-bit integers in shared memory,
// so that the order of additions does not matter. Their unit follows the
// largest number the block has met (all warps take a round of 128 tokens
// together): 2^16 units are at least that number, and a piece of 2,048 tokens
// adds at most 2^14 of them to one sum, so nothing can overflow.

#include "ops/cuda/fused.cuh"

namespace luna::cuda {
namespace fused {
namespace {

constexpr int kWarps = 8;
constexpr int kStages = 3;
constexpr int kFragments = 32 * 32;  // of uint2: a 64 x 64 operand

struct Layout {
  __host__ __device__ explicit Layout(const TableShape& shape)
      : segments(static_cast<int>(shape.knots) + 1),
        columns(segments + (segments % 2 == 0 ? 1 : 0)) {
    const int64_t bytes = Table::bytes(shape);
    table = kWarps * kStages * 2 * kTileBytes;
    transposed = table + bytes;
    plain = transposed + kFragments * 8;
    z = plain + kFragments * 8;
    tops = z + kFeatures * 4;
    sums = tops + 16;
    total = sums + 2 * kChannels * columns * 4;
  }
  int segments, columns;
  int64_t table, transposed, plain, z, tops, sums, total;
};

/// The least power of two >= x; 0 for 0.
__device__ __forceinline__ float power_above(float x) {
  if (!(x > 0.f)) return 0.f;
  return exp2f(ceilf(log2f(x)));
}

template <bool kKeys, bool kNonneg>
__global__ void __launch_bounds__(kWarps * 32, 1)
    backward_kernel(FusedBackward p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  const Layout layout(p.map.shape);
  Table table(p.map, memory + layout.table);
  table.copy(p.map.shape, p.image);
  auto* transposed = reinterpret_cast<uint2*>(memory + layout.transposed);
  auto* plain = reinterpret_cast<uint2*>(memory + layout.plain);
  auto* z = reinterpret_cast<float*>(memory + layout.z);
  auto* tops = reinterpret_cast<int*>(memory + layout.tops);
  auto* sums = reinterpret_cast<int*>(memory + layout.sums);
  const int numbers = 2 * kChannels * layout.columns;
  const uint32_t stages =
      shared_address(memory) + warp * kStages * 2 * kTileBytes;

  Projection w;
  w.load(p.map, 0);
  const float bias0 = p.map.bias[2 * t], bias1 = p.map.bias[2 * t + 1];
  // W as right operand of dx: rows 2 t and 2 t + 1, columns permuted as out's.
  uint32_t back_high[8], back_low[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int column = 8 * (g / 2) + 2 * (j % 4) + g % 2 + 32 * (j / 4);
    const float x = p.map.weight[(2 * t) * kWidth + column];
    const float y = p.map.weight[(2 * t + 1) * kWidth + column];
    const float hx = high_part(x), hy = high_part(y);
    back_high[j] = pack(hx, hy);
    back_low[j] = pack(x - hx, y - hy);
  }
  float grad_w[8][4] = {}, grad_b[2] = {};
  for (int i = threadIdx.x; i < numbers; i += blockDim.x) sums[i] = 0;
  const int64_t size = static_cast<int64_t>(layout.segments) * 2 * kChannels +
                       kChannels * (kWidth + 1);
  float* part = p.parts + blockIdx.x * size;
  bool first = true;

  for (int64_t work = blockIdx.x; work < p.pieces.bound * p.heads;
       work += gridDim.x) {
    const int64_t head = work % p.heads, number = work / p.heads;
    Piece piece;
    if (!locate(p.pieces, number, piece)) break;
    const int count = static_cast<int>(piece.count);
    const int64_t begin = piece.begin + piece.offset;
    const auto head_rows = [&](const Rows& rows) {
      return static_cast<__nv_bfloat16*>(rows.data) +
             row_at(rows, piece.batch, head, begin);
    };
    const __nv_bfloat16 *xs = head_rows(p.x), *ys = head_rows(p.y);
    const float* row_numbers = p.row.data == nullptr
                                   ? nullptr
                                   : p.row.data + piece.batch * p.row.batch +
                                         head * p.row.head + begin;
    const int64_t kept =
        kKeys ? 0
              : piece.batch * p.inverse_batch + head * p.inverse_head + begin;
    const int steps = (count + kTokens - 1) / kTokens;
    const int rounds = (steps + kWarps - 1) / kWarps;
    const auto start = [&](int step, int slot) {
      if (step < rounds * kWarps) {  // past the end: zeros
        const int64_t at =
            step < steps ? static_cast<int64_t>(step) * kTokens : 0;
        const int rows = count - step * kTokens;
        const uint32_t stage = stages + slot * 2 * kTileBytes;
        copy_rows<true>(stage, xs + at * p.x.row, p.x.row, rows);
        copy_rows<false>(stage + kTileBytes, ys + at * p.y.row, p.y.row, rows);
      }
      commit_copies();
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) start(warp + i * kWarps, i);

    // The state as right operands, in the order threads read them.
    const float* state =
        p.states + (piece.sequence * p.heads + head) * kFeatures * kLd;
    for (int i = threadIdx.x; i < kFragments; i += blockDim.x) {
      const int fg = i % 32 / 4, ft = i % 4, j = i / 32 % 8, k = i / 256;
      const int feature =
          (2 * (fg / 2) + j / 4) * kChannels + 2 * (j % 4) + fg % 2;
      const float* s =
          state + feature * kLd + 8 * ft + 4 * (k % 2) + 32 * (k / 2);
      transposed[i] = make_uint2(pack(s[0], s[1]), pack(s[2], s[3]));
      if (kKeys) {
        const int column = 8 * (fg / 2) + 2 * (j % 4) + fg % 2 + 32 * (j / 4);
        const float* r =
            state + ((2 * ft + k / 2) * kChannels + 4 * (k % 2)) * kLd + column;
        plain[i] = make_uint2(pack(r[0], r[kLd]), pack(r[2 * kLd], r[3 * kLd]));
      }
    }
    if (threadIdx.x < kFeatures) {
      z[threadIdx.x] = state[threadIdx.x * kLd + kWidth];
    }
    if (threadIdx.x < 4) tops[threadIdx.x] = 0;
    wait_copies<kStages - 2>();  // the table's, the first time
    __syncthreads();
    float unit[2] = {};  // what 2^16 of the sums' units are

    int slot = 0;
    for (int round = 0; round < rounds; ++round) {
      const int step = round * kWarps + warp;
      start(step + (kStages - 1) * kWarps, (slot + kStages - 1) % kStages);
      wait_copies<kStages - 1>();
      __syncwarp();
      const uint32_t stage = stages + slot * 2 * kTileBytes;
      const unsigned char* bytes =
          memory + (warp * kStages + slot) * 2 * kTileBytes;
      const int token = step * kTokens + g;
      // Tokens g and g + 8; a missing one counts for nothing.
      const bool valid[2] = {token < count, token + 8 < count};
      float u[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto chunk = [&](int row) {
          return *reinterpret_cast<const uint4*>(
              bytes + matrix_chunk(row, 4 * half + t));
        };
        const uint4 x = chunk(g), y = chunk(g + 8);
        const int k = 2 * half;
        mma(u, x.x, y.x, x.y, y.y, w.high[k][0], w.high[k][1]);
        mma(u, x.x, y.x, x.y, y.y, w.low[k][0], w.low[k][1]);
        mma(u, x.z, y.z, x.w, y.w, w.high[k + 1][0], w.high[k + 1][1]);
        mma(u, x.z, y.z, x.w, y.w, w.low[k + 1][0], w.low[k + 1][1]);
      }
      // c[j]: features of projection 2 t + j / 4, channels 2 (j % 4)..
      float c[8][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto chunk = [&](int row) {
          return *reinterpret_cast<const uint4*>(
              bytes + kTileBytes + fragment_chunk(row, 4 * half + t));
        };
        const uint4 x = chunk(g), y = chunk(g + 8);
        const uint2* b = transposed + 2 * half * 256 + lane;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const uint2 b0 = b[j * 32], b1 = b[256 + j * 32];
          mma(c[j], x.x, y.x, x.y, y.y, b0.x, b0.y);
          mma(c[j], x.z, y.z, x.w, y.w, b1.x, b1.y);
        }
      }
      float phi[2][2][kChannels];  // token, projection
      uint4 slope[2][2];
      float slope_unit[2][2];
      int segment[2][2];
      u[0] += bias0, u[1] += bias1, u[2] += bias0, u[3] += bias1;
      table.find(u[0], u[1], u[2], u[3], segment[0][0], segment[0][1],
                 segment[1][0], segment[1][1]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const float x = u[2 * r + m];
          table.look_up<kNonneg>(segment[r][m], x, 1.f, phi[r][m], slope[r][m],
                                 slope_unit[r][m]);
        }
      }
      float factor[2];  // of a row: 1 / den, or its weight
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = token + 8 * r;
        float x = 1.f;
        if (row_numbers != nullptr && valid[r]) x = row_numbers[at];
        if (kKeys) {
          factor[r] = valid[r] ? x : 0.f;
          continue;
        }
        factor[r] = valid[r] ? 1.f / guarded(x, p.eps) : 0.f;
        float dot = 0.f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          dot = fmaf(phi[r][j / 4][2 * (j % 4)], c[j][2 * r], dot);
          dot = fmaf(phi[r][j / 4][2 * (j % 4) + 1], c[j][2 * r + 1], dot);
        }
        dot += __shfl_xor_sync(0xffffffffu, dot, 1);
        dot += __shfl_xor_sync(0xffffffffu, dot, 2);
        const float d = fabsf(x) > p.eps ? -dot * factor[r] : 0.f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float* at_z = z + (2 * t + j / 4) * kChannels + 2 * (j % 4);
          c[j][2 * r] = fmaf(d, at_z[0], c[j][2 * r]);
          c[j][2 * r + 1] = fmaf(d, at_z[1], c[j][2 * r + 1]);
        }
        if (t == 0 && valid[r]) {
          p.inverse[kept + at] = factor[r];
          p.d[kept + at] = d;
        }
      }
      float du[2][2], top = 0.f, top_u = 0.f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint32_t slopes[4] = {slope[r][m].x, slope[r][m].y,
                                      slope[r][m].z, slope[r][m].w};
          float total = 0.f, most = 0.f;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float* x = &c[4 * m + i][2 * r];
            const float2 s =
                __half22float2(*reinterpret_cast<const __half2*>(&slopes[i]));
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (kKeys) {
                x[e] += z[(2 * t + m) * kChannels + 2 * i + e];
              }
              x[e] *= factor[r];
              const bool cut =
                  (kNonneg && !(phi[r][m][2 * i + e] > 0.f)) || !valid[r];
              if (cut) x[e] = 0.f;
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
#pragma unroll
      for (int i = 16; i > 0; i /= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
        top_u = fmaxf(top_u, __shfl_xor_sync(0xffffffffu, top_u, i));
      }
      // Two sets in turn: a fast warp's next round leaves this one's alone.
      int* round_tops = tops + 2 * (round % 2);
      if (lane == 0) {
        atomicMax(&round_tops[0], __float_as_int(top));
        atomicMax(&round_tops[1], __float_as_int(top_u));
      }

      // dx, while the others arrive.
      uint32_t high[2], low[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float hx = high_part(du[r][0]), hy = high_part(du[r][1]);
        high[r] = pack(hx, hy);
        low[r] = pack(du[r][0] - hx, du[r][1] - hy);
      }
      {
        float dx[8][4] = {};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          mma(dx[j], high[0], high[1], low[0], low[1], back_high[j],
              back_high[j]);
          mma(dx[j], high[0], high[1], 0u, 0u, back_low[j], 0u);
        }
        __nv_bfloat16* rows = head_rows(p.grad_x);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (!valid[r]) continue;
          uint4* row = reinterpret_cast<uint4*>(
              rows + static_cast<int64_t>(token + 8 * r) * p.grad_x.row);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            uint32_t x[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              x[j] = pack(dx[4 * half + j][2 * r], dx[4 * half + j][2 * r + 1]);
            }
            row[4 * half + t] = make_uint4(x[0], x[1], x[2], x[3]);
          }
        }
      }
      {  // dW: rows 0-7 sum high parts, rows 8-15 low ones
        const uint32_t a0 = transpose(high[0]), a1 = transpose(low[0]);
        const uint32_t a2 = transpose(high[1]), a3 = transpose(low[1]);
        const int row = lane % 16, column = lane / 16;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          uint32_t b[4];
          load_transposed(b, stage + matrix_chunk(row, j + column));
          mma(grad_w[j], a0, a1, a2, a3, b[0], b[1]);
          mma(grad_w[j + 1], a0, a1, a2, a3, b[2], b[3]);
        }
      }
      if (kKeys) {  // dv = w phi dS
        float dy[8][4] = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int m = k / 2, i = 4 * (k % 2);
          const auto two = [&](int r, int e) {
            return pack(phi[r][m][i + e] * factor[r],
                        phi[r][m][i + e + 1] * factor[r]);
          };
          const uint32_t a0 = two(0, 0), a1 = two(1, 0), a2 = two(0, 2),
                         a3 = two(1, 2);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const uint2 b = plain[(k * 8 + j) * 32 + lane];
            mma(dy[j], a0, a1, a2, a3, b.x, b.y);
          }
        }
        __nv_bfloat16* rows = head_rows(p.grad_y);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (!valid[r]) continue;
          uint4* row = reinterpret_cast<uint4*>(
              rows + static_cast<int64_t>(token + 8 * r) * p.grad_y.row);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            uint32_t x[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              x[j] = pack(dy[4 * half + j][2 * r], dy[4 * half + j][2 * r + 1]);
            }
            row[4 * half + t] = make_uint4(x[0], x[1], x[2], x[3]);
          }
        }
      }

      // The sums' unit, for all warps; older sums move to a larger one.
      __syncthreads();
      const float seen[2] = {__int_as_float(round_tops[0]),
                             __int_as_float(round_tops[1])};
      if (seen[0] > unit[0] || seen[1] > unit[1]) {
        int shift[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float larger = fmaxf(unit[i], power_above(seen[i]));
          shift[i] =
              unit[i] > 0.f && larger < INFINITY
                  ? static_cast<int>(log2f(larger) - log2f(unit[i]) + .5f)
                  : 0;
          unit[i] = larger;
        }
        for (int i = threadIdx.x; i < numbers; i += blockDim.x) {
          const int s = shift[i / (kChannels * layout.columns)];
          if (s > 0) {
            sums[i] = s > 30 ? 0 : (sums[i] + (1 << (s - 1))) >> s;
          }
        }
        __syncthreads();
      }
      const float to_units = unit[0] > 0.f ? 65536.f / unit[0] : 0.f;
      const float to_units_u = unit[1] > 0.f ? 65536.f / unit[1] : 0.f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const float x = u[2 * r + m] * to_units_u;
          int* at = sums + segment[r][m];
#pragma unroll
          for (int i = 0; i < kChannels; ++i) {
            const float y = c[4 * m + i / 2][2 * r + i % 2];
            if (y == 0.f) continue;  // about half: quicker than by predicate
            atomicAdd(at + i * layout.columns, __float2int_rn(y * to_units));
            atomicAdd(at + (kChannels + i) * layout.columns,
                      __float2int_rn(y * x));
          }
        }
      }
      slot = (slot + 1) % kStages;
      __syncwarp();
    }
    wait_copies<0>();
    __syncthreads();
    // To the block's own part, in float32, and back to 0.
    const float scale = unit[0] / 65536.f * p.map.factor;
    const float scale_u = unit[1] / 65536.f * p.map.factor;
    for (int i = threadIdx.x; i < layout.segments * 2 * kChannels;
         i += blockDim.x) {
      const int segment = i / (2 * kChannels), column = i % (2 * kChannels);
      int* at = sums + column * layout.columns + segment;
      float x =
          static_cast<float>(*at) * (column < kChannels ? scale : scale_u);
      if (!(unit[0] < INFINITY && unit[1] < INFINITY)) x = NAN;
      *at = 0;
      part[i] = first ? x : part[i] + x;
    }
    first = false;
    __syncthreads();
  }

  // dW and db of all warps, where stages were.
  wait_copies<0>();
  __syncthreads();
  float* all = reinterpret_cast<float*>(memory);  // [warps][8][65]
  constexpr int kRow = kWidth + 1;
  float* own = all + warp * kChannels * kRow;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    own[g * kRow + 8 * j + 2 * t] = grad_w[j][0] + grad_w[j][2];
    own[g * kRow + 8 * j + 2 * t + 1] = grad_w[j][1] + grad_w[j][3];
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    float x = grad_b[m];
    for (int i = 4; i < 32; i *= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    if (g == 0) own[(2 * t + m) * kRow + kWidth] = x;
  }
  __syncthreads();
  float* weights = part + static_cast<int64_t>(layout.segments) * 2 * kChannels;
  for (int i = threadIdx.x; i < kChannels * kRow; i += blockDim.x) {
    float x = 0.f;
    for (int j = 0; j < kWarps; ++j) x += all[j * kChannels * kRow + i];
    const int m = i / kRow, column = i % kRow;
    weights[column < kWidth ? m * kWidth + column : kChannels * kWidth + m] = x;
  }
  if (first) {  // no work: the sums are 0
    for (int i = threadIdx.x; i < layout.segments * 2 * kChannels;
         i += blockDim.x) {
      part[i] = 0.f;
    }
  }
}

}  // namespace
}  // namespace fused

bool fused_fits(const TableShape& shape) {
  const auto most = static_cast<size_t>(
      fused::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  return shape.knots < 65536 && fused::forward_memory(shape) <= most &&
         static_cast<size_t>(fused::Layout(shape).total) <= most;
}

int64_t fused_blocks() { return fused::multiprocessors(); }

void fused_backward(const FusedBackward& p, cudaStream_t stream) {
  const auto kernel =
      p.keys ? (p.map.nonneg ? fused::backward_kernel<true, true>
                             : fused::backward_kernel<true, false>)
             : (p.map.nonneg ? fused::backward_kernel<false, true>
                             : fused::backward_kernel<false, false>);
  const auto memory = static_cast<size_t>(fused::Layout(p.map.shape).total);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  kernel<<<static_cast<unsigned>(p.blocks), fused::kWarps * 32, memory,
           stream>>>(p);
  check_launch("fused_backward");
}

}  // namespace luna::cuda
