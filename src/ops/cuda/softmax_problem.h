#pragma once

#include <algorithm>
#include <cmath>

#include "ops/cuda/launch.h"
#include "ops/cuda/softmax.h"
#include "ops/cuda/softmax_mma.h"
#include "ops/cuda/softmax_wgmma.h"
#include "ops/cuda/tensors.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {

inline double scale_of(const at::Tensor& query, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

inline SoftmaxDropout dropout_of(double p,
                                 const std::optional<at::Tensor>& seed,
                                 ops::DropoutMap map, at::Tensor& holder) {
  SoftmaxDropout dropout;
  if (p == 0) return dropout;
  holder = seed->contiguous();
  dropout.seed = holder.const_data_ptr<int64_t>();
  dropout.map = map;
  dropout.threshold = ops::dropout_threshold(p);
  dropout.scale = 1 / (1 - p);
  return dropout;
}

/// Tokens whose share of the slots' sums one block adds up.
constexpr int64_t kSoftmaxPiece = 512;

/// Whether the kernels of softmax_mma.h take it.
inline bool by_tensor_cores(const at::Tensor& query, const at::Tensor& value,
                            int64_t slots, double scale) {
  return query.scalar_type() == at::kBFloat16 && scale >= 0 &&
         softmax_mma_fits({slots, query.size(3), value.size(3)});
}

/// Once, for whichever op comes first.
inline void warn_of_portable_kernels(const char* op, const at::Tensor& query) {
  if (query.scalar_type() == at::kDouble) return;
  TORCH_WARN_ONCE(ops::slower_path(op));
}

/// Rows that 16-byte words can be copied from.
inline at::Tensor in_words(const at::Tensor& x) {
  const bool fits = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 &&
                    x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 &&
                    x.stride(2) % 8 == 0 && x.stride(3) == 1;
  return fits ? x : x.clone(at::MemoryFormat::Contiguous);
}

/// What beginning a piece costs, in tokens.
constexpr int64_t kPieceStart = 96;

/// Blocks at work at once, where each multiprocessor has so many.
inline int64_t blocks_at_work(int64_t per_multiprocessor) {
  return multiprocessors() * per_multiprocessor;
}

/// Tokens of a piece, a multiple of `step`, such that the pieces of `rows`
/// sequences of `length` tokens keep `per_multiprocessor` blocks on each
/// multiprocessor evenly busy.
inline int64_t even_piece(int64_t rows, int64_t length,
                          int64_t per_multiprocessor, int64_t step = 16) {
  const int64_t blocks = blocks_at_work(per_multiprocessor);
  int64_t best = std::max<int64_t>(length, 1), cost = INT64_MAX;
  for (int64_t pieces = 1; (pieces - 1) * rows < 4 * blocks; ++pieces) {
    const int64_t piece =
        ((length + pieces - 1) / pieces + step - 1) / step * step;
    if (piece < 64 && pieces > 1) break;
    const int64_t waves = (rows * pieces + blocks - 1) / blocks;
    if (waves * (piece + kPieceStart) >= cost) continue;
    cost = waves * (piece + kPieceStart);
    best = std::max(piece, step);
  }
  return best;
}

/// The same where each row is `sequences` packed ones, `length` tokens in all,
/// whose ends only the device knows: each adds half a piece on the mean. Blocks
/// take one piece after the other, and at the end wait half a piece for the
/// last of them; unless there is one for every piece.
inline int64_t packed_piece(int64_t rows, int64_t length, int64_t sequences,
                            int64_t per_multiprocessor, int64_t step) {
  const auto blocks = static_cast<double>(blocks_at_work(per_multiprocessor));
  int64_t best = step;
  double cost = INFINITY;
  for (int64_t piece = step; piece / 2 < cost; piece += step) {
    const double pieces =
        rows * (static_cast<double>(length) / piece + sequences / 2.0);
    const double tokens = rows * static_cast<double>(length);
    const double time =
        pieces <= blocks
            ? piece + kPieceStart
            : (tokens + pieces * kPieceStart) / blocks + piece / 2.0;
    if (time >= cost) continue;
    cost = time;
    best = piece;
  }
  return best;
}

/// The same for the tensor cores' kernels with x the tokens' side.
inline int64_t piece_of(const at::Tensor& x,
                        const std::optional<at::Tensor>& cu_seqlens,
                        int64_t slots, bool pack_forward) {
  const int64_t rows = x.size(0) * x.size(1);
  if (slots <= ops::kSoftmaxWgmmaLeastSlots ||
      !ops::softmax_wgmma_takes(x.size(3))) {
    // Packed sequences count as one.
    return even_piece(rows, x.size(2), slots <= 64 && x.size(3) <= 64 ? 2 : 1);
  }
  // Pack's forward has blocks of up to 256 slots, small ones beside each other.
  const int64_t blocks = pack_forward ? (slots + 255) / 256 : 1;
  const int64_t per_multiprocessor =
      !pack_forward || slots > 128 ? 1 : (slots > 64 ? 2 : 3);
  if (cu_seqlens.has_value()) {
    return packed_piece(rows * blocks, x.size(2), cu_seqlens->size(0) - 1,
                        per_multiprocessor, kSoftmaxWgmmaTokens);
  }
  return even_piece(rows * blocks, x.size(2), per_multiprocessor,
                    kSoftmaxWgmmaTokens);
}

}  // namespace luna::cuda
