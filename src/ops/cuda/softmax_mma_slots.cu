// The slots' gradients for more than 16 slots: G warps share the tokens they
// walk, each holds the rows of its own slots as left operands and the sums of
// their gradients. Groups of warps take turns over the tokens of a piece.

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/softmax_mma_backward.cuh"
#include "ops/cuda/softmax_wgmma.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace softmax_mma {
namespace {

template <int D, int M, int G>
struct SlotsShape {
  static constexpr int kGroups = kWarps / G;
  static constexpr int kTokens = D == 128 ? 16 : 32;
  static constexpr int kStages = 3;
  static constexpr int kSlots = 16 * M * G;  // of a block
  static constexpr int kTileBytes = kTokens * Tile<D>::kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes + 2 * kTokens * 4;
  static constexpr size_t kStaged = size_t{kGroups} * kStages * kStageBytes;
  static constexpr size_t kSums = sizeof(float) * kGroups * kSlots * D;
  static constexpr size_t kMemory =
      std::max(kStaged + 2 * kSlots * sizeof(float), kSums);
};

template <typename T, int D, int M, int G, bool kPack, bool kGeneral>
__global__ void __launch_bounds__(kBlock, M == 1 && D <= 64 ? 2 : 1)
    slots_kernel(SoftmaxMmaBackward a) {
  using Shape = SlotsShape<D, M, G>;
  extern __shared__ __align__(128) unsigned char memory[];
  const SoftmaxProblem<float>& p = a.problem;
  const int64_t head = blockIdx.x % p.heads, number = blockIdx.x / p.heads;
  Piece piece;
  if (!locate(p.tokens, number, piece)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4, group = warp / G;
  const int depth = static_cast<int>(p.depth),
            width = static_cast<int>(p.width);
  const int64_t begin = piece.begin + piece.offset;
  const int64_t first_slot = static_cast<int64_t>(blockIdx.y) * Shape::kSlots;
  const int64_t slots = p.slots - first_slot;  // from the block's first on
  const int own = warp % G * 16 * M;
  const float* weights = weights_of<kPack>(p, piece, head);
  const Keep<float> keep(p.dropout, piece.sequence, head);
  const uint32_t base = mma::shared_address(memory);
  const uint32_t stages = base + group * Shape::kStages * Shape::kStageBytes;
  const int count = static_cast<int>(piece.count);
  const int steps = (count + Shape::kTokens - 1) / Shape::kTokens;
  const int64_t all =
      (p.tokens.begin == nullptr ? p.tokens.sequences : 1) * p.heads * a.length;
  const float* rows =
      a.rows + (piece.batch * p.heads + head) * a.length + begin;
  const auto start = [&](int step, int slot) {
    if (step < steps) {
      const int first = step * Shape::kTokens, thread = threadIdx.x % (32 * G);
      const uint32_t stage = stages + slot * Shape::kStageBytes;
      Tile<D>::template copy<T, 32 * G>(
          stage, row_pointer<T>(a.x, piece.batch, head, begin + first), a.x.row,
          Shape::kTokens, count - first, depth, thread);
      Tile<D>::template copy<T, 32 * G>(
          stage + Shape::kTileBytes,
          row_pointer<T>(a.y, piece.batch, head, begin + first), a.y.row,
          Shape::kTokens, count - first, width, thread);
      if (!kPack) {
        for (int i = thread; i < 2 * Shape::kTokens; i += 32 * G) {
          const int token = first + i % Shape::kTokens;
          const bool valid = token < count;
          mma::copy_word_async(
              stage + 2 * Shape::kTileBytes + 4 * i,
              rows + (valid ? i / Shape::kTokens * all + token : 0), valid);
        }
      }
    }
    mma::commit_copies();
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) {
    start(group + i * Shape::kGroups, i);
  }
  Left left_p[M][D / 16], left_z[M][D / 16];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    load_left<T, D>(left_p[m],
                    row_pointer<T>(a.p, piece.sequence, head, first_slot),
                    a.p.row, own + 16 * m, slots, depth);
    load_left<T, D>(left_z[m],
                    row_pointer<T>(a.z, piece.sequence, head, first_slot),
                    a.z.row, own + 16 * m, slots, width);
  }
  // Of slots: pack's logsumexp and delta, unpack's weight.
  float lse[M][2], delta[M][2], row[M][2];
  if (kPack) {
    auto* stats = reinterpret_cast<float*>(memory + Shape::kStaged);
    load_stats<T>(a, piece.sequence, head, first_slot, Shape::kSlots, stats);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = own + 16 * m + g + 8 * h;
        lse[m][h] = stats[i];
        delta[m][h] = stats[Shape::kSlots + i];
      }
    }
  } else {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = own + 16 * m + g + 8 * h;
        row[m][h] = i < slots ? 1.f : 0.f;
        if (kGeneral && weights != nullptr && i < slots) {
          row[m][h] = fmaxf(weights[first_slot + i], 0.f);
        }
      }
    }
  }
  const float factor = p.scale * kLog2E;
  Sum sum_p[M][D / 8] = {}, sum_z[kPack ? 1 : M][D / 8] = {};
  int slot = 0;
  // As many rounds for each group: they wait for each other.
  for (int round = 0; round < steps; round += Shape::kGroups) {
    const int step = round + group;
    mma::wait_copies<Shape::kStages - 2>();
    if constexpr (G == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
    start(step + (Shape::kStages - 1) * Shape::kGroups,
          (slot + Shape::kStages - 1) % Shape::kStages);
    const uint32_t tile_x = stages + slot * Shape::kStageBytes;
    const uint32_t tile_y = tile_x + Shape::kTileBytes;
    const auto* token_stats = reinterpret_cast<const float*>(
        memory + (group * Shape::kStages + slot) * Shape::kStageBytes +
        2 * Shape::kTileBytes);
    const int first = step * Shape::kTokens;
#pragma unroll
    for (int j0 = 0; j0 < Shape::kTokens; j0 += 16) {
      if (first + j0 >= count) break;
      Sum s[M][2], d[M][2];
      mma::pipelined<D / 8, 2>(
          [&](int i, Left& r) {
            Tile<D>::load(r, i % 2 == 0 ? tile_x : tile_y, j0, i / 2 * 2);
          },
          [&](int i, const Left& r) {
            const int k = i / 2;
#pragma unroll
            for (int m = 0; m < M; ++m) {
              Sum(&to)[2] = i % 2 == 0 ? s[m] : d[m];
              const Left& left = i % 2 == 0 ? left_p[m][k] : left_z[m][k];
              if (k == 0) {
                mma::set<T>(to[0], left, r[0], r[2]);
                mma::set<T>(to[1], left, r[1], r[3]);
              } else {
                mma::add<T>(to[0], left, r[0], r[2]);
                mma::add<T>(to[1], left, r[1], r[3]);
              }
            }
          });
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int j = j0 + 8 * n + 2 * t;
        float2 norm, shift;
        float w[2] = {1.f, 1.f};
        if (kPack) {
          if (kGeneral && weights != nullptr) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              if (first + j + i < count) w[i] = weights[first + j + i];
            }
          }
        } else {
          norm = *reinterpret_cast<const float2*>(token_stats + j);
          shift = *reinterpret_cast<const float2*>(token_stats +
                                                   Shape::kTokens + j);
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int h = i / 2;
            const float x = __fmul_rn(s[m][n][i], factor) -
                            (kPack ? lse[m][h] : (i % 2 ? norm.y : norm.x));
            float e = kGeneral ? capped_power(x) : mma::power(x);
            if (kGeneral) e *= kPack ? w[i % 2] : row[m][h];
            // Beyond the sequence's end the power may be anything.
            if (kPack && first + j + i % 2 >= count) e = 0.f;
            const float shifted =
                kPack ? delta[m][h] : (i % 2 ? shift.y : shift.x);
            const float k = kGeneral
                                ? keep(piece.offset + first + j + i % 2,
                                       first_slot + own + 16 * m + g + 8 * h)
                                : 1.f;
            d[m][n][i] = e * (d[m][n][i] * k - shifted);
            s[m][n][i] = e * k;
          }
        }
      }
      Left left[M];
#pragma unroll
      for (int m = 0; m < M; ++m) mma::to_left<T>(left[m], d[m][0], d[m][1]);
      mma::pipelined<D / 16, 2>(
          [&](int i, Left& r) { Tile<D>::load_right(r, tile_x, j0, 2 * i); },
          [&](int i, const Left& r) {
#pragma unroll
            for (int m = 0; m < M; ++m) {
              mma::add<T>(sum_p[m][2 * i], left[m], r[0], r[1]);
              mma::add<T>(sum_p[m][2 * i + 1], left[m], r[2], r[3]);
            }
          });
      if constexpr (!kPack) {
#pragma unroll
        for (int m = 0; m < M; ++m) mma::to_left<T>(left[m], s[m][0], s[m][1]);
        mma::pipelined<D / 16, 2>(
            [&](int i, Left& r) { Tile<D>::load_right(r, tile_y, j0, 2 * i); },
            [&](int i, const Left& r) {
#pragma unroll
              for (int m = 0; m < M; ++m) {
                mma::add<T>(sum_z[m][2 * i], left[m], r[0], r[1]);
                mma::add<T>(sum_z[m][2 * i + 1], left[m], r[2], r[3]);
              }
            });
      }
    }
    slot = (slot + 1) % Shape::kStages;
  }
  mma::wait_copies<0>();
  __syncthreads();
  auto* sums = reinterpret_cast<float*>(memory);
  const int valid =
      static_cast<int>(slots < Shape::kSlots ? slots : Shape::kSlots);
  const auto leave = [&](const Sum* sum, float gain, float* parts,
                         const Rows& grad, int columns) {
    put_sums<D, M>(sums + (group * Shape::kSlots + own) * D, sum, gain);
    __syncthreads();
    add_up<D, Shape::kGroups, Shape::kSlots>(
        sums,
        {a.parts == nullptr
             ? nullptr
             : parts +
                   ((number * p.heads + head) * p.slots + first_slot) * columns,
         grad, piece.sequence, head, first_slot, valid, columns});
    __syncthreads();
  };
  leave(sum_p[0], p.scale, a.parts, a.grad_p, depth);
  if (!kPack) {
    leave(sum_z[0], 1.f, a.parts + p.tokens.bound * p.heads * p.slots * p.depth,
          a.grad_z, width);
  }
}

template <typename T, int D, int M, int G>
void run(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  using Shape = SlotsShape<D, M, G>;
  static_assert(Shape::kMemory <= kMemoryLimit);
  const SoftmaxProblem<float>& p = a.problem;
  const bool general = p.weight.data != nullptr || p.dropout.seed != nullptr;
  const dim3 grid(static_cast<unsigned>(p.tokens.bound * p.heads),
                  static_cast<unsigned>(blocks_for(p.slots, Shape::kSlots)));
  auto* kernel = p.pack ? (general ? slots_kernel<T, D, M, G, true, true>
                                   : slots_kernel<T, D, M, G, true, false>)
                        : (general ? slots_kernel<T, D, M, G, false, true>
                                   : slots_kernel<T, D, M, G, false, false>);
  launch(kernel, grid, Shape::kMemory, a, stream,
         "softmax_mma_backward, slots");
}
template <typename T, int D>
void run(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  if (a.problem.slots <= 64) {
    run<T, D, 1, 4>(a, stream);
  } else if constexpr (D == 128) {
    run<T, D, 1, 8>(a, stream);
  } else {
    if (a.problem.slots <= 128) {
      run<T, D, 2, 4>(a, stream);
    } else {
      run<T, D, 2, 8>(a, stream);
    }
  }
}

/// The slots' gradients from their parts: over one sequence, or over all.
struct AddSlots {
  Cut tokens;
  int64_t heads, slots, width;
  bool shared;
  const float* parts;
  Rows grad;
};
template <int kSplit>  // warps that share a slot
__global__ void add_slots_kernel(AddSlots a, AddSlots b, int64_t targets) {
  const AddSlots& p = blockIdx.y == 0 ? a : b;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kWarps / kSplit) + warp / kSplit;
  const int64_t s = row % p.slots, pair = row / p.slots;
  const int64_t head = pair % p.heads, target = pair / p.heads;
  const bool valid = target < targets;
  const int64_t first = !valid || p.shared ? 0 : first_piece(p.tokens, target);
  const int64_t end =
      valid ? first_piece(p.tokens, p.shared ? p.tokens.sequences : target + 1)
            : 0;
  __shared__ float sums[kWarps][128];
  float x[4] = {};
  const int width = static_cast<int>(p.width);
#pragma unroll 4
  for (int64_t i = first + warp % kSplit; i < end; i += kSplit) {
    const float* part = p.parts + ((i * p.heads + head) * p.slots + s) * width;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (lane + 32 * j < width) x[j] += part[lane + 32 * j];
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) sums[warp][lane + 32 * j] = x[j];
  __syncthreads();
  if (!valid) return;
  for (int n = threadIdx.x % (32 * kSplit); n < width; n += 32 * kSplit) {
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < kSplit; ++i) {
      total += sums[warp / kSplit * kSplit + i][n];
    }
    store<float>(p.grad.data, row_at(p.grad, target, head, s) + n, p.grad.type,
                 total);
  }
}

}  // namespace

void slots_backward(const SoftmaxMmaBackward& a, cudaStream_t stream) {
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

}  // namespace softmax_mma

bool has_room_for_mma() {
  return static_cast<size_t>(block_memory()) >= softmax_mma::kMemoryLimit;
}

bool softmax_mma_fits(const SoftmaxShape& s) {
  using namespace softmax_mma;
  if (s.slots < 1 || s.slots > ops::kSoftmaxMmaSlots || s.depth % 8 != 0 ||
      s.width % 8 != 0 || s.depth < 8 || s.width < 8 ||
      s.depth > ops::kSoftmaxMmaWidth || s.width > ops::kSoftmaxMmaWidth) {
    return false;
  }
  return has_room_for_mma() && forward_memory(s) <= kMemoryLimit &&
         backward_memory(s) <= kMemoryLimit;
}

void softmax_mma_backward(const SoftmaxMmaBackward& a, cudaStream_t stream) {
  using namespace softmax_mma;
  const SoftmaxProblem<float>& p = a.problem;
  if (p.heads == 0 || p.tokens.sequences == 0) return;
  if (p.tokens.bound > 0) {
    if (softmax_wgmma_fits(a)) {
      softmax_wgmma_backward(a, stream);
    } else if (p.slots <= 16) {
      few_slots_backward(a, stream);
    } else {
      tokens_backward(a, stream);
      slots_backward(a, stream);
    }
  }
  if (a.parts == nullptr) return;
  const bool shared = p.pack && p.shared_slots;
  const int64_t targets = shared ? 1 : p.tokens.sequences;
  const AddSlots of_p = {p.tokens, p.heads, p.slots, p.depth,
                         shared,   a.parts, a.grad_p};
  const AddSlots of_z = {
      p.tokens, p.heads, p.slots,
      p.width,  false,   a.parts + p.tokens.bound * p.heads * p.slots * p.depth,
      a.grad_z};
  const int64_t rows = targets * p.heads * p.slots;
  const unsigned grads = p.pack ? 1 : 2;
  if (p.tokens.bound > 8 * targets) {
    add_slots_kernel<kWarps>
        <<<dim3(static_cast<unsigned>(rows), grads), kBlock, 0, stream>>>(
            of_p, of_z, targets);
  } else {
    const auto blocks = static_cast<unsigned>(blocks_for(rows, kWarps));
    add_slots_kernel<1>
        <<<dim3(blocks, grads), kBlock, 0, stream>>>(of_p, of_z, targets);
  }
  check_launch("softmax_mma_backward, sums");
}

}  // namespace luna::cuda
