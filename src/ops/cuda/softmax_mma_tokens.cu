// The tokens' gradients for more than 16 slots: a warp holds its tokens' rows
// as left operands and walks all slots in shared memory. Unpack walks them
// twice: for each row's maximum, sum and delta, which slots_backward reads
// too, then for the gradient.

#include <algorithm>

#include "ops/cuda/softmax_mma_backward.cuh"

namespace luna::cuda::softmax_mma {
namespace {

template <int D, bool kPack>
struct TokensShape {
  static constexpr int kM = 1;
  static constexpr int kTokens = 16 * kM;
  static constexpr int kTileBytes = kTokens * Tile<D>::kRowBytes;
  static size_t memory(int64_t slots) {
    const int64_t rows = padded_slots(slots);
    return size_t{kWarps} * 2 * kTileBytes + 2 * rows * Tile<D>::kRowBytes +
           (kPack ? 3 * rows * sizeof(float) : 0);
  }
};

template <typename T, int D, bool kPack, bool kGeneral>
__global__ void __launch_bounds__(kBlock, D == 128 ? 1 : 2)
    tokens_kernel(SoftmaxMmaBackward a) {
  using Shape = TokensShape<D, kPack>;
  constexpr int M = Shape::kM;
  extern __shared__ __align__(128) unsigned char memory[];
  const SoftmaxProblem<float>& p = a.problem;
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.tokens, number, piece)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int slots = static_cast<int>(p.slots);
  const int rows = (slots + 31) / 32 * 32;
  const int depth = static_cast<int>(p.depth),
            width = static_cast<int>(p.width);
  const int64_t begin = piece.begin + piece.offset;
  const float* weights = weights_of<kPack>(p, piece, head);
  const Keep<float> keep(p.dropout, piece.sequence, head);
  const uint32_t base = mma::shared_address(memory);
  const uint32_t tile_x = base + warp * 2 * Shape::kTileBytes;
  const uint32_t tile_y = tile_x + Shape::kTileBytes;
  const uint32_t slot_p = base + kWarps * 2 * Shape::kTileBytes;
  const uint32_t slot_z = slot_p + rows * Tile<D>::kRowBytes;
  auto* stats = reinterpret_cast<float*>(
      memory + kWarps * 2 * Shape::kTileBytes + 2 * rows * Tile<D>::kRowBytes);
  Tile<D>::template copy<T, kBlock>(
      slot_p, row_pointer<T>(a.p, piece.sequence, head, 0), a.p.row, rows,
      slots, depth, threadIdx.x);
  Tile<D>::template copy<T, kBlock>(
      slot_z, row_pointer<T>(a.z, piece.sequence, head, 0), a.z.row, rows,
      slots, width, threadIdx.x);
  const int count = static_cast<int>(piece.count);
  const int steps = (count + Shape::kTokens - 1) / Shape::kTokens;
  const auto start = [&](int step) {
    if (step < steps) {
      const int first = step * Shape::kTokens;
      Tile<D>::template copy<T, 32>(
          tile_x, row_pointer<T>(a.x, piece.batch, head, begin + first),
          a.x.row, Shape::kTokens, count - first, depth, lane);
      Tile<D>::template copy<T, 32>(
          tile_y, row_pointer<T>(a.y, piece.batch, head, begin + first),
          a.y.row, Shape::kTokens, count - first, width, lane);
    }
    mma::commit_copies();
  };
  start(warp);
  if (kPack) load_stats<T>(a, piece.sequence, head, 0, rows, stats);
  mma::wait_copies<0>();
  __syncthreads();
  const float factor = p.scale * kLog2E;
  for (int step = warp; step < steps; step += kWarps) {
    const int first = step * Shape::kTokens;
    mma::wait_copies<0>();
    __syncwarp();
    Left x[M][D / 16], y[M][D / 16];
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        Tile<D>::load(x[m][k], tile_x, 16 * m, 2 * k);
        Tile<D>::load(y[m][k], tile_y, 16 * m, 2 * k);
      }
    }
    // Scores and weights' gradients of 16 slots.
    const auto products = [&](int j0, Sum(&s)[M][2], Sum(&d)[M][2]) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[m][n][i] = d[m][n][i] = 0.f;
        }
      }
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        Left r, q;
        Tile<D>::load(r, slot_p, j0, 2 * k);
        Tile<D>::load(q, slot_z, j0, 2 * k);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          mma::add<T>(s[m][0], x[m][k], r[0], r[2]);
          mma::add<T>(s[m][1], x[m][k], r[1], r[3]);
          mma::add<T>(d[m][0], y[m][k], q[0], q[2]);
          mma::add<T>(d[m][1], y[m][k], q[1], q[3]);
        }
      }
      float w[2][2] = {{1.f, 1.f}, {1.f, 1.f}};
      if (!kPack) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int j = j0 + 8 * n + 2 * t + i;
            if (kGeneral && weights != nullptr) {
              w[n][i] = j < slots ? weights[j] : 0.f;
            } else if (j >= slots) {
              w[n][i] = 0.f;
            }
          }
        }
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            s[m][n][i] = __fmul_rn(s[m][n][i], factor);
            if (!kPack && !(w[n][i % 2] > 0.f)) s[m][n][i] = -INFINITY;
          }
        }
      }
    };
    const auto slot_weight = [&](int j) {
      return !kPack && kGeneral && weights != nullptr && j < slots ? weights[j]
                                                                   : 1.f;
    };
    const auto kept = [&](int m, int i, int slot) {
      return keep(piece.offset + first + 16 * m + g + 8 * (i / 2), slot);
    };
    float top[M][2], inverse[M][2], delta[M][2], row[M][2];
    if (kPack) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int token = first + 16 * m + g + 8 * h;
          row[m][h] = token < count ? 1.f : 0.f;
          if (kGeneral && weights != nullptr && token < count) {
            row[m][h] = weights[token];
          }
        }
      }
    } else {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        top[m][0] = top[m][1] = kLowest;
        inverse[m][0] = inverse[m][1] = delta[m][0] = delta[m][1] = 0.f;
      }
#pragma unroll 1
      for (int j0 = 0; j0 < rows; j0 += 16) {
        Sum s[M][2], d[M][2];
        products(j0, s, d);
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float high = fmaxf(fmaxf(s[m][0][2 * h], s[m][0][2 * h + 1]),
                               fmaxf(s[m][1][2 * h], s[m][1][2 * h + 1]));
            // Each thread has a maximum of its own until the end.
            high = fmaxf(high, top[m][h]);
            const float shrink = mma::power(top[m][h] - high);
            top[m][h] = high;
            float total = 0.f, product = 0.f;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
#pragma unroll
              for (int i = 2 * h; i < 2 * h + 2; ++i) {
                const int j = j0 + 8 * n + 2 * t + i % 2;
                float e = mma::power(s[m][n][i] - high);
                if (kGeneral) e *= slot_weight(j);
                total += e;
                if (kGeneral) e *= kept(m, i, j);
                product = fmaf(e, d[m][n][i], product);
              }
            }
            inverse[m][h] = fmaf(inverse[m][h], shrink, total);
            delta[m][h] = fmaf(delta[m][h], shrink, product);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float high = mma::row_max(top[m][h]);
          const float shrink = mma::power(top[m][h] - high);
          top[m][h] = high;
          inverse[m][h] = inverse_of(mma::row_sum(inverse[m][h] * shrink));
          delta[m][h] = mma::row_sum(delta[m][h] * shrink) * inverse[m][h];
          const int token = first + 16 * m + g + 8 * h;
          if (t == 0 && token < count) {
            const int64_t all =
                (p.tokens.begin == nullptr ? p.tokens.sequences : 1) * p.heads *
                a.length;
            float* to = a.rows + (piece.batch * p.heads + head) * a.length +
                        begin + token;
            to[0] = top[m][h];
            to[all] = inverse[m][h];
            to[2 * all] = delta[m][h];
          }
        }
      }
    }
    Sum grad_x[M][D / 8] = {}, grad_y[kPack ? M : 1][D / 8] = {};
#pragma unroll 1
    for (int j0 = 0; j0 < rows; j0 += 16) {
      Sum s[M][2], d[M][2];
      products(j0, s, d);
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int j = j0 + 8 * n + 2 * t;
          float2 high, scale, shift;
          if (kPack) {
            high = *reinterpret_cast<float2*>(stats + j);
            scale = *reinterpret_cast<float2*>(stats + rows + j);
            shift = *reinterpret_cast<float2*>(stats + 2 * rows + j);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int h = i / 2;
            float e;
            if (kPack) {
              e = capped_power(s[m][n][i] - (i % 2 ? high.y : high.x)) *
                  (i % 2 ? scale.y : scale.x) * row[m][h];
              if (row[m][h] == 0.f) e = 0.f;
            } else {
              e = mma::power(s[m][n][i] - top[m][h]) * inverse[m][h];
              if (kGeneral) e *= slot_weight(j + i % 2);
            }
            const float k = kGeneral ? kept(m, i, j + i % 2) : 1.f;
            const float shifted =
                kPack ? (i % 2 ? shift.y : shift.x) : delta[m][h];
            d[m][n][i] = e * (d[m][n][i] * k - shifted);
            s[m][n][i] = e * k;
          }
        }
      }
      Left left[M];
#pragma unroll
      for (int m = 0; m < M; ++m) mma::to_left<T>(left[m], d[m][0], d[m][1]);
#pragma unroll
      for (int c = 0; c < D / 8; c += 2) {
        Left r;
        Tile<D>::load_right(r, slot_p, j0, c);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          mma::add<T>(grad_x[m][c], left[m], r[0], r[1]);
          mma::add<T>(grad_x[m][c + 1], left[m], r[2], r[3]);
        }
      }
      if constexpr (kPack) {
#pragma unroll
        for (int m = 0; m < M; ++m) mma::to_left<T>(left[m], s[m][0], s[m][1]);
#pragma unroll
        for (int c = 0; c < D / 8; c += 2) {
          Left r;
          Tile<D>::load_right(r, slot_z, j0, c);
#pragma unroll
          for (int m = 0; m < M; ++m) {
            mma::add<T>(grad_y[m][c], left[m], r[0], r[1]);
            mma::add<T>(grad_y[m][c + 1], left[m], r[2], r[3]);
          }
        }
      }
    }
    __syncwarp();
    const auto leave = [&](const Sum(&grad)[D / 8], int m, uint32_t tile,
                           float gain) {
#pragma unroll
      for (int c = 0; c < D / 8; ++c) {
        Tile<D>::put(tile, 16 * m + g, c,
                     mma::pack<T>(grad[c][0] * gain, grad[c][1] * gain));
        Tile<D>::put(tile, 16 * m + g + 8, c,
                     mma::pack<T>(grad[c][2] * gain, grad[c][3] * gain));
      }
    };
#pragma unroll
    for (int m = 0; m < M; ++m) {
      leave(grad_x[m], m, tile_x, p.scale);
      if constexpr (kPack) leave(grad_y[m], m, tile_y, 1.f);
    }
    __syncwarp();
    Tile<D>::template store<T>(
        tile_x, row_pointer<T>(a.grad_x, piece.batch, head, begin + first),
        a.grad_x.row, Shape::kTokens, count - first, depth);
    if (kPack) {
      Tile<D>::template store<T>(
          tile_y, row_pointer<T>(a.grad_y, piece.batch, head, begin + first),
          a.grad_y.row, Shape::kTokens, count - first, width);
    }
    __syncwarp();
    start(step + kWarps);
  }
}

template <typename T, int D, bool kPack>
void run(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = a.problem;
  const bool general = p.weight.data != nullptr || p.dropout.seed != nullptr;
  const dim3 grid(static_cast<unsigned>(p.tokens.bound * p.heads));
  launch(general ? tokens_kernel<T, D, kPack, true>
                 : tokens_kernel<T, D, kPack, false>,
         grid, TokensShape<D, kPack>::memory(p.slots), a, stream,
         "softmax_mma_backward, tokens");
}
template <typename T, int D>
void run(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  a.problem.pack ? run<T, D, true>(a, stream) : run<T, D, false>(a, stream);
}

}  // namespace

size_t backward_memory(const SoftmaxShape& s, bool) {
  switch (padded(std::max(s.depth, s.width))) {
    case 32:
      return TokensShape<32, true>::memory(s.slots);
    case 64:
      return TokensShape<64, true>::memory(s.slots);
    default:
      return TokensShape<128, true>::memory(s.slots);
  }
}

void tokens_backward(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  using T = __nv_bfloat16;
  switch (padded(std::max(a.problem.depth, a.problem.width))) {
    case 32:
      return run<T, 32>(a, stream);
    case 64:
      return run<T, 64>(a, stream);
    default:
      return run<T, 128>(a, stream);
  }
}

}  // namespace luna::cuda::softmax_mma
