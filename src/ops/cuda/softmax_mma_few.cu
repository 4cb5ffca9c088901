// The backward of at most 16 slots, in one pass: a warp has all slots of its
// 16 tokens at hand and keeps the slots' own gradients in registers.
//
//   P, G  the weights and their gradient y z^T, tokens by slots
//   dS = P (G - delta),  dx = dS p,  dp += dS^T x
//   pack: dy = P z;  unpack: dz += P^T y

#include <algorithm>

#include "ops/cuda/softmax_mma.cuh"
#include "ops/cuda/softmax_mma_backward.cuh"

namespace luna::cuda::softmax_mma {
namespace {

template <int D>
struct FewShape {
  static constexpr int kTileBytes = 16 * Tile<D>::kRowBytes;
  static constexpr int kStages = D == 128 ? 2 : 3;
  static constexpr size_t kStaged = size_t{kWarps} * kStages * 2 * kTileBytes;
  static constexpr size_t kMemory = kStaged + 2 * kTileBytes + 3 * 16 * 4;
};

template <typename T, int D, bool kPack, bool kGeneral>
__global__ void __launch_bounds__(kBlock, D == 128 ? 1 : 2)
    few_kernel(SoftmaxMmaBackward a) {
  using Shape = FewShape<D>;
  extern __shared__ __align__(128) unsigned char memory[];
  const SoftmaxProblem<float>& p = a.problem;
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.tokens, number, piece)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int slots = static_cast<int>(p.slots);
  const int depth = static_cast<int>(p.depth),
            width = static_cast<int>(p.width);
  const int64_t begin = piece.begin + piece.offset;
  const T* x = row_pointer<T>(a.x, piece.batch, head, begin);
  const T* y = row_pointer<T>(a.y, piece.batch, head, begin);
  const float* weights = weights_of<kPack>(p, piece, head);
  const Keep<float> keep(p.dropout, piece.sequence, head);
  const uint32_t base = mma::shared_address(memory);
  const uint32_t slot_p = base + Shape::kStaged;
  const uint32_t slot_z = slot_p + Shape::kTileBytes;
  auto* stats =
      reinterpret_cast<float*>(memory + Shape::kStaged + 2 * Shape::kTileBytes);
  Tile<D>::template copy<T, kBlock>(
      slot_p, row_pointer<T>(a.p, piece.sequence, head, 0), a.p.row, 16, slots,
      depth, threadIdx.x);
  Tile<D>::template copy<T, kBlock>(
      slot_z, row_pointer<T>(a.z, piece.sequence, head, 0), a.z.row, 16, slots,
      width, threadIdx.x);
  mma::commit_copies();
  const int count = static_cast<int>(piece.count);
  const int steps = (count + 15) / 16;
  const uint32_t stages = base + warp * Shape::kStages * 2 * Shape::kTileBytes;
  const auto start = [&](int step, int slot) {
    if (step < steps) {
      const int first = step * 16;
      const uint32_t stage = stages + slot * 2 * Shape::kTileBytes;
      Tile<D>::template copy<T, 32>(stage, x + first * a.x.row, a.x.row, 16,
                                    count - first, depth, lane);
      Tile<D>::template copy<T, 32>(stage + Shape::kTileBytes,
                                    y + first * a.y.row, a.y.row, 16,
                                    count - first, width, lane);
    }
    mma::commit_copies();
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) start(warp + i * kWarps, i);
  if (kPack) load_stats<T>(a, piece.sequence, head, 0, 16, stats);
  mma::wait_copies<Shape::kStages - 1>();
  __syncthreads();

  const float factor = p.scale * kLog2E;
  Sum sum_p[D / 8] = {}, sum_z[kPack ? 1 : D / 8] = {};
  int slot = 0;
  for (int step = warp; step < steps; step += kWarps) {
    __syncwarp();
    start(step + (Shape::kStages - 1) * kWarps,
          (slot + Shape::kStages - 1) % Shape::kStages);
    mma::wait_copies<Shape::kStages - 1>();
    __syncwarp();
    const uint32_t tile_x = stages + slot * 2 * Shape::kTileBytes;
    const uint32_t tile_y = tile_x + Shape::kTileBytes;
    const int first = step * 16;
    Sum s[2] = {}, d[2] = {};
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      Left l, r;
      Tile<D>::load(l, tile_x, 0, 2 * k);
      Tile<D>::load(r, slot_p, 0, 2 * k);
      mma::add<T>(s[0], l, r[0], r[2]);
      mma::add<T>(s[1], l, r[1], r[3]);
      Tile<D>::load(l, tile_y, 0, 2 * k);
      Tile<D>::load(r, slot_z, 0, 2 * k);
      mma::add<T>(d[0], l, r[0], r[2]);
      mma::add<T>(d[1], l, r[1], r[3]);
    }
    // s becomes the weights, d the scores' gradient.
    float w[4] = {1.f, 1.f, 1.f, 1.f};  // of tokens g, g + 8 or of slots
    if (kGeneral && weights != nullptr) {
      if (kPack) {
        w[0] = first + g < count ? weights[first + g] : 0.f;
        w[1] = first + g + 8 < count ? weights[first + g + 8] : 0.f;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = 8 * (i / 2) + 2 * t + i % 2;
          w[i] = j < slots ? weights[j] : 0.f;
        }
      }
    }
    const auto kept = [&](int n, int i) {
      return keep(piece.offset + first + g + 8 * (i / 2),
                  8 * n + 2 * t + i % 2);
    };
    if (kPack) {
      float row[2] = {first + g < count ? 1.f : 0.f,
                      first + g + 8 < count ? 1.f : 0.f};
      if (kGeneral) {
        row[0] *= w[0];
        row[1] *= w[1];
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 top = *reinterpret_cast<float2*>(stats + 8 * n + 2 * t);
        const float2 inverse =
            *reinterpret_cast<float2*>(stats + 16 + 8 * n + 2 * t);
        const float2 delta =
            *reinterpret_cast<float2*>(stats + 32 + 8 * n + 2 * t);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float e = capped_power(__fmul_rn(s[n][i], factor) -
                                 (i % 2 ? top.y : top.x)) *
                    (i % 2 ? inverse.y : inverse.x) * row[i / 2];
          // Beyond the sequence's end the power may be anything.
          if (row[i / 2] == 0.f) e = 0.f;
          const float k = kGeneral ? kept(n, i) : 1.f;
          d[n][i] = e * (d[n][i] * k - (i % 2 ? delta.y : delta.x));
          s[n][i] = e * k;
        }
      }
    } else {
      float top[2] = {kLowest, kLowest}, total[2] = {}, delta[2] = {};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] = __fmul_rn(s[n][i], factor);
          if (8 * n + 2 * t + i % 2 >= slots ||
              (kGeneral && !(w[2 * n + i % 2] > 0.f))) {
            s[n][i] = -INFINITY;
          }
          top[i / 2] = fmaxf(top[i / 2], s[n][i]);
        }
      }
      top[0] = mma::row_max(top[0]);
      top[1] = mma::row_max(top[1]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float e = mma::power(s[n][i] - top[i / 2]);
          if (kGeneral) e *= w[2 * n + i % 2];
          total[i / 2] += e;
          s[n][i] = e;
        }
      }
      const float inverse[2] = {inverse_of(mma::row_sum(total[0])),
                                inverse_of(mma::row_sum(total[1]))};
      float k[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] *= inverse[i / 2];
          k[n][i] = kGeneral ? kept(n, i) : 1.f;
          d[n][i] *= k[n][i];
          delta[i / 2] = fmaf(s[n][i], d[n][i], delta[i / 2]);
        }
      }
      delta[0] = mma::row_sum(delta[0]);
      delta[1] = mma::row_sum(delta[1]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          d[n][i] = s[n][i] * (d[n][i] - delta[i / 2]);
          if (kGeneral) s[n][i] *= k[n][i];
        }
      }
    }
    Left of_scores, of_weights, turned;
    mma::to_left<T>(of_scores, d[0], d[1]);
    mma::to_left<T>(of_weights, s[0], s[1]);
    mma::transpose(turned, of_scores);
#pragma unroll
    for (int c = 0; c < D / 8; c += 2) {
      Left r;
      Tile<D>::load_right(r, tile_x, 0, c);
      mma::add<T>(sum_p[c], turned, r[0], r[1]);
      mma::add<T>(sum_p[c + 1], turned, r[2], r[3]);
    }
    if constexpr (!kPack) {
      mma::transpose(turned, of_weights);
#pragma unroll
      for (int c = 0; c < D / 8; c += 2) {
        Left r;
        Tile<D>::load_right(r, tile_y, 0, c);
        mma::add<T>(sum_z[c], turned, r[0], r[1]);
        mma::add<T>(sum_z[c + 1], turned, r[2], r[3]);
      }
    }
    // The gradients take the place of their rows, and leave from there.
    __syncwarp();
    const auto token_gradient = [&](const Left& left, uint32_t slot_tile,
                                    uint32_t tile, float gain) {
#pragma unroll
      for (int c = 0; c < D / 8; c += 2) {
        Sum o[2] = {};
        Left r;
        Tile<D>::load_right(r, slot_tile, 0, c);
        mma::add<T>(o[0], left, r[0], r[1]);
        mma::add<T>(o[1], left, r[2], r[3]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          Tile<D>::put(tile, g, c + i,
                       mma::pack<T>(o[i][0] * gain, o[i][1] * gain));
          Tile<D>::put(tile, g + 8, c + i,
                       mma::pack<T>(o[i][2] * gain, o[i][3] * gain));
        }
      }
    };
    token_gradient(of_scores, slot_p, tile_x, p.scale);
    if (kPack) token_gradient(of_weights, slot_z, tile_y, 1.f);
    __syncwarp();
    Tile<D>::template store<T>(
        tile_x, row_pointer<T>(a.grad_x, piece.batch, head, begin + first),
        a.grad_x.row, 16, count - first, depth);
    if (kPack) {
      Tile<D>::template store<T>(
          tile_y, row_pointer<T>(a.grad_y, piece.batch, head, begin + first),
          a.grad_y.row, 16, count - first, width);
    }
    slot = (slot + 1) % Shape::kStages;
  }
  mma::wait_copies<0>();
  __syncthreads();

  // The warps' sums, added in order.
  auto* sums = reinterpret_cast<float*>(memory);
  const auto leave = [&](const Sum* sum, float gain, float* parts,
                         const Rows& grad, int columns) {
    put_sums<D, 1>(sums + warp * 16 * D, sum, gain);
    __syncthreads();
    add_up<D, kWarps, 16>(
        sums, {a.parts == nullptr
                   ? nullptr
                   : parts + (number * p.heads + head) * p.slots * columns,
               grad, piece.sequence, head, 0, slots, columns});
    __syncthreads();
  };
  leave(sum_p, p.scale, a.parts, a.grad_p, depth);
  if (!kPack) {
    leave(sum_z, 1.f, a.parts + p.tokens.bound * p.heads * p.slots * p.depth,
          a.grad_z, width);
  }
}

template <typename T, int D>
void run(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = a.problem;
  const bool general = p.weight.data != nullptr || p.dropout.seed != nullptr;
  const dim3 grid(static_cast<unsigned>(p.tokens.bound * p.heads));
  auto* kernel = p.pack ? (general ? few_kernel<T, D, true, true>
                                   : few_kernel<T, D, true, false>)
                        : (general ? few_kernel<T, D, false, true>
                                   : few_kernel<T, D, false, false>);
  launch(kernel, grid, FewShape<D>::kMemory, a, stream,
         "softmax_mma_backward, few slots");
}

}  // namespace

void few_slots_backward(const SoftmaxMmaBackward& a, cudaStream_t stream) {
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
