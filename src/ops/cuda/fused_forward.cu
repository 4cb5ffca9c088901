// The two passes of the fused forward.
//
// Keys: u^T = W x^T leaves in each thread one projection of four tokens; their
// features are the left operand of S += phi^T V, 64 x 64 sums a warp. A block's
// eight warps take turns over its piece and add up their sums at the end.
//
// Queries: u = x W^T leaves two projections of two tokens; their features are
// the left operand of phi S, with S and z in registers as right operands. The
// columns of S are permuted such that a thread ends with 8 neighbours of a row.

#include <algorithm>

#include "ops/cuda/fused.cuh"

namespace luna::cuda {
namespace fused {
namespace {

constexpr int kStages = 4;
constexpr int kKeyWarps = 8;
constexpr int kQueryWarps = 12;

// --- Keys -------------------------------------------------------------------

template <bool kNonneg>
__global__ void __launch_bounds__(kKeyWarps * 32, 1) keys_kernel(FusedKeys p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  constexpr int kSize = kFeatures * kLd;
  Table table(p.map, memory + kKeyWarps * kStages * 2 * kTileBytes);
  table.copy(p.map.shape, p.image);
  const uint32_t stages =
      shared_address(memory) + warp * kStages * 2 * kTileBytes;
  for (int64_t work = blockIdx.x; work < p.pieces.bound * p.heads;
       work += gridDim.x) {
    const int64_t head = work % p.heads, number = work / p.heads;
    Piece piece;
    if (!locate(p.pieces, number, piece)) break;
    const int count = static_cast<int>(piece.count);
    const int64_t begin = piece.begin + piece.offset;
    const auto* keys = static_cast<const __nv_bfloat16*>(p.key.data) +
                       row_at(p.key, piece.batch, head, begin);
    const auto* values = static_cast<const __nv_bfloat16*>(p.value.data) +
                         row_at(p.value, piece.batch, head, begin);
    const auto rows_of = [&](const Factor<float>& f) {
      return f.data == nullptr
                 ? nullptr
                 : f.data + piece.batch * f.batch + head * f.head + begin;
    };
    const float *weights = rows_of(p.weight), *lasts = rows_of(p.last);
    const int steps = (count + kTokens - 1) / kTokens;
    const auto start = [&](int step, int slot) {
      if (step < steps) {
        const int64_t first = static_cast<int64_t>(step) * kTokens;
        const int rows = count - step * kTokens;
        const uint32_t stage = stages + slot * 2 * kTileBytes;
        copy_rows<false>(stage, keys + first * p.key.row, p.key.row, rows);
        copy_rows<true>(stage + kTileBytes, values + first * p.value.row,
                        p.value.row, rows);
      }
      commit_copies();
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) start(warp + i * kKeyWarps, i);
    Projection w;
    w.load(p.map, head);
    const float bias =
        p.map.bias[(p.map.per_head ? head * p.map.projections : 0) + g];
    float sum[4][8][4] = {};
    float z[kChannels] = {};
    if (work == blockIdx.x) {  // the table is there
      wait_copies<kStages - 2>();
      __syncthreads();
    }

    int slot = 0;
    for (int step = warp; step < steps; step += kKeyWarps) {
      start(step + (kStages - 1) * kKeyWarps, (slot + kStages - 1) % kStages);
      wait_copies<kStages - 1>();
      __syncwarp();
      const uint32_t stage = stages + slot * 2 * kTileBytes;
      const unsigned char* rows =
          memory + (warp * kStages + slot) * 2 * kTileBytes;
      float u[2][4] = {};  // high parts' sums, then low parts'
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = half * 8 + g;
        const uint4 x =
            *reinterpret_cast<const uint4*>(rows + fragment_chunk(row, t));
        const uint4 y =
            *reinterpret_cast<const uint4*>(rows + fragment_chunk(row, 4 + t));
        float(&sums)[4] = u[half];
        mma(sums, w.high[0][0], w.low[0][0], w.high[0][1], w.low[0][1], x.x,
            x.y);
        mma(sums, w.high[1][0], w.low[1][0], w.high[1][1], w.low[1][1], x.z,
            x.w);
        mma(sums, w.high[2][0], w.low[2][0], w.high[2][1], w.low[2][1], y.x,
            y.y);
        mma(sums, w.high[3][0], w.low[3][0], w.high[3][1], w.low[3][1], y.z,
            y.w);
        u[half][0] += u[half][2] + bias;
        u[half][1] += u[half][3] + bias;
      }
      int segment[2][2];
      table.find(u[0][0], u[0][1], u[1][0], u[1][1], segment[0][0],
                 segment[0][1], segment[1][0], segment[1][1]);
      uint32_t phi[2][kChannels];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = step * kTokens + half * 8 + 2 * t;
        const bool valid0 = token < count, valid1 = token + 1 < count;
        float w0 = valid0 ? 1.f : 0.f, w1 = valid1 ? 1.f : 0.f;
        if (weights != nullptr) {
          if (valid0) w0 = weights[token];
          if (valid1) w1 = weights[token + 1];
        }
        float l0 = 1.f, l1 = 1.f;
        if (lasts != nullptr) {
          if (valid0) l0 = lasts[token];
          if (valid1) l1 = lasts[token + 1];
        }
        float a[kChannels], b[kChannels];
        table.look_up<kNonneg>(segment[half][0], u[half][0], w0, a);
        table.look_up<kNonneg>(segment[half][1], u[half][1], w1, b);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          z[c] = fmaf(a[c], l0, fmaf(b[c], l1, z[c]));
          phi[half][c] = pack(a[c], b[c]);
        }
      }
      const int row = lane % 16, column = lane / 16;
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        uint32_t v[4];
        load_transposed(v, stage + kTileBytes + matrix_chunk(row, c + column));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          mma(sum[i][c], phi[0][2 * i], phi[0][2 * i + 1], phi[1][2 * i],
              phi[1][2 * i + 1], v[0], v[1]);
          mma(sum[i][c + 1], phi[0][2 * i], phi[0][2 * i + 1], phi[1][2 * i],
              phi[1][2 * i + 1], v[2], v[3]);
        }
      }
      slot = (slot + 1) % kStages;
      __syncwarp();  // the stage may be written again
    }
    wait_copies<0>();
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      z[c] += __shfl_xor_sync(0xffffffffu, z[c], 1);
      z[c] += __shfl_xor_sync(0xffffffffu, z[c], 2);
    }

    // Eight warps' sums, added by halves in a fixed order, where stages were.
    float* buffers = reinterpret_cast<float*>(memory);
    const auto exchange = [&](float* buffer, bool write) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int feature = g * kChannels + 2 * i + e / 2;
            float* at = buffer + feature * kLd + 8 * j + 2 * t + e % 2;
            if (write) {
              *at = sum[i][j][e];
            } else {
              sum[i][j][e] += *at;
            }
          }
        }
      }
      if (t == 0) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          float* at = buffer + (g * kChannels + c) * kLd + kWidth;
          if (write) {
            *at = z[c];
          } else {
            z[c] += *at;
          }
        }
      }
    };
#pragma unroll
    for (int half = kKeyWarps / 2; half > 0; half /= 2) {
      __syncthreads();
      if (warp >= half && warp < 2 * half) {
        exchange(buffers + (warp - half) * kSize, true);
      }
      __syncthreads();
      if (warp < half) exchange(buffers + warp * kSize, false);
    }
    __syncthreads();
    if (warp == 0) exchange(buffers, true);
    __syncthreads();
    float* part = p.parts + (number * p.heads + head) * kSize;
    for (int i = threadIdx.x; i < kSize; i += blockDim.x) part[i] = buffers[i];
    __syncthreads();  // stages may be written again
  }
}

// --- Queries ----------------------------------------------------------------

template <bool kNonneg>
__global__ void __launch_bounds__(kQueryWarps * 32, 1)
    queries_kernel(FusedQueries p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  unsigned char* rest = memory + kQueryWarps * kStages * kTileBytes;
  float* state = reinterpret_cast<float*>(rest);
  Table table(p.map, rest + kFeatures * kLd * 4);
  table.copy(p.map.shape, p.image);
  for (int64_t work = blockIdx.x; work < p.pieces.bound * p.heads;
       work += gridDim.x) {
    const int64_t head = work % p.heads, number = work / p.heads;
    Piece piece;
    if (!locate(p.pieces, number, piece)) break;
    const int count = static_cast<int>(piece.count);
    const int64_t begin = piece.begin + piece.offset;
    const auto* queries = static_cast<const __nv_bfloat16*>(p.query.data) +
                          row_at(p.query, piece.batch, head, begin);
    auto* out = static_cast<__nv_bfloat16*>(p.out.data) +
                row_at(p.out, piece.batch, head, begin);
    float* denominator = p.denominator == nullptr
                             ? nullptr
                             : p.denominator +
                                   piece.batch * p.denominator_batch +
                                   head * p.denominator_head + begin;
    const uint32_t stages =
        shared_address(memory) + warp * kStages * kTileBytes;
    const int steps = (count + kTokens - 1) / kTokens;
    const auto start = [&](int step, int slot) {
      if (step < steps) {
        copy_rows<false>(
            stages + slot * kTileBytes,
            queries + static_cast<int64_t>(step) * kTokens * p.query.row,
            p.query.row, count - step * kTokens);
      }
      commit_copies();
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) start(warp + i * kQueryWarps, i);

    const float* from =
        p.states + (piece.sequence * p.heads + head) * kFeatures * kLd;
    for (int i = threadIdx.x; i < kFeatures * kLd; i += blockDim.x) {
      state[i] = from[i];
    }
    Projection w;
    w.load(p.map, head);
    const float* biases =
        p.map.bias + (p.map.per_head ? head * p.map.projections : 0);
    const float bias0 = biases[2 * t], bias1 = biases[2 * t + 1];
    wait_copies<kStages - 2>();  // the table's, the first time
    __syncthreads();
    // Step k of the depth: channels 4 (k % 2).. of projection 2 t + k / 2.
    // Column g of tile j: 8 (g / 2) + 2 (j % 4) + g % 2 + 32 (j / 4).
    uint32_t s[4][8][2], z[4][2];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int feature = (2 * t + k / 2) * kChannels + 4 * (k % 2) + 2 * e;
        const float* row = state + feature * kLd;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int column = 8 * (g / 2) + 2 * (j % 4) + g % 2 + 32 * (j / 4);
          s[k][j][e] = pack(row[column], row[kLd + column]);
        }
        // Columns 0 and 1: the normaliser's high and low parts.
        const float x = row[kWidth], y = row[kLd + kWidth];
        const float hx = high_part(x), hy = high_part(y);
        z[k][e] = g == 0 ? pack(hx, hy) : (g == 1 ? pack(x - hx, y - hy) : 0u);
      }
    }

    int slot = 0;
    for (int step = warp; step < steps; step += kQueryWarps) {
      start(step + (kStages - 1) * kQueryWarps, (slot + kStages - 1) % kStages);
      wait_copies<kStages - 1>();
      __syncwarp();
      const unsigned char* rows = memory + (warp * kStages + slot) * kTileBytes;
      const auto chunk = [&](int row, int c) {
        return *reinterpret_cast<const uint4*>(rows + fragment_chunk(row, c));
      };
      float u[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 x = chunk(g, 4 * half + t), y = chunk(g + 8, 4 * half + t);
        const int k = 2 * half;
        mma(u, x.x, y.x, x.y, y.y, w.high[k][0], w.high[k][1]);
        mma(u, x.x, y.x, x.y, y.y, w.low[k][0], w.low[k][1]);
        mma(u, x.z, y.z, x.w, y.w, w.high[k + 1][0], w.high[k + 1][1]);
        mma(u, x.z, y.z, x.w, y.w, w.low[k + 1][0], w.low[k + 1][1]);
      }
      u[0] += bias0, u[1] += bias1, u[2] += bias0, u[3] += bias1;
      int segment[4];
      table.find(u[0], u[1], u[2], u[3], segment[0], segment[1], segment[2],
                 segment[3]);
      float c[8][4] = {}, d[4] = {};
#pragma unroll
      for (int which = 0; which < 2; ++which) {  // projections 2 t, 2 t + 1
        float a[kChannels], b[kChannels];
        table.look_up<kNonneg>(segment[which], u[which], 1.f, a);
        table.look_up<kNonneg>(segment[2 + which], u[2 + which], 1.f, b);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t a0 = pack(a[4 * k], a[4 * k + 1]);
          const uint32_t a1 = pack(b[4 * k], b[4 * k + 1]);
          const uint32_t a2 = pack(a[4 * k + 2], a[4 * k + 3]);
          const uint32_t a3 = pack(b[4 * k + 2], b[4 * k + 3]);
          const int depth = 2 * which + k;
          mma(d, a0, a1, a2, a3, z[depth][0], z[depth][1]);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            mma(c[j], a0, a1, a2, a3, s[depth][j][0], s[depth][j][1]);
          }
        }
      }
      // Thread 0 of the quad has the denominators' two parts.
      float den0 = d[0] + d[1], den1 = d[2] + d[3];
      den0 = __shfl_sync(0xffffffffu, den0, lane & ~3);
      den1 = __shfl_sync(0xffffffffu, den1, lane & ~3);
      const float r0 = 1.f / guarded(den0, p.eps);
      const float r1 = 1.f / guarded(den1, p.eps);
      const int token = step * kTokens + g;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = token + 8 * half;
        if (at >= count) break;
        const float r = half == 0 ? r0 : r1;
        uint4* row = reinterpret_cast<uint4*>(out + static_cast<int64_t>(at) *
                                                        p.out.row);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          uint32_t x[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            x[j] = pack(c[4 * part + j][2 * half] * r,
                        c[4 * part + j][2 * half + 1] * r);
          }
          row[4 * part + t] = make_uint4(x[0], x[1], x[2], x[3]);
        }
        if (denominator != nullptr && t == 0) {
          denominator[at] = half == 0 ? den0 : den1;
        }
      }
      slot = (slot + 1) % kStages;
      __syncwarp();
    }
    wait_copies<0>();
    __syncthreads();  // the state may be written again
  }
}

size_t key_memory(const TableShape& shape) {
  return kKeyWarps * kStages * 2 * kTileBytes + Table::bytes(shape);
}
size_t query_memory(const TableShape& shape) {
  return kQueryWarps * kStages * kTileBytes + kFeatures * kLd * 4 +
         Table::bytes(shape);
}

__global__ void image_kernel(FeatureMap<float> map, void* image) {
  Table(map, image).build(map);
}

}  // namespace

size_t forward_memory(const TableShape& shape) {
  return std::max(key_memory(shape), query_memory(shape));
}

}  // namespace fused

int64_t fused_image_bytes(const TableShape& shape) {
  return fused::Table::bytes(shape);
}

void fused_image(const FeatureMap<float>& map, void* image,
                 cudaStream_t stream) {
  fused::image_kernel<<<8, 128, 0, stream>>>(map, image);
  check_launch("fused_image");
}

void fused_keys(const FusedKeys& p, cudaStream_t stream) {
  fused::launch(
      p.map.nonneg ? fused::keys_kernel<true> : fused::keys_kernel<false>,
      p.pieces.bound * p.heads, fused::kKeyWarps * 32,
      fused::key_memory(p.map.shape), p, stream, "fused_keys");
}

void fused_queries(const FusedQueries& p, cudaStream_t stream) {
  fused::launch(
      p.map.nonneg ? fused::queries_kernel<true> : fused::queries_kernel<false>,
      p.pieces.bound * p.heads, fused::kQueryWarps * 32,
      fused::query_memory(p.map.shape), p, stream, "fused_queries");
}

}  // namespace luna::cuda
