#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "ops/cpu/rows.h"
#include "ops/cpu/simd/softmax.h"
#include "ops/cpu/simd/tile.h"
#include "ops/dropout.h"

// What the kernels of nested attention share: tiles of a few tokens by all
// slots, scratch memory, and the split of long sequences over threads.

namespace luna::cpu {

constexpr double kLog2E = 1.44269504088896340736;

/// Tokens of a tile.
constexpr int64_t kTokens = 64;
/// Depth at which products over slots are cut, so that one operand is in L1.
constexpr int64_t kDepth = 64;

/// Columns of a tile of slots.
inline int64_t padded(int64_t slots) {
  return (slots + kSlotPad - 1) / kSlotPad * kSlotPad;
}

/// Distance of a tile's rows: an odd number of cache lines, so that a column
/// spreads over all sets of the cache.
inline int64_t tile_stride(int64_t columns) {
  return kSlotPad * ((columns + kSlotPad - 1) / kSlotPad | 1);
}

/// One aligned block of scratch memory, handed out piece by piece.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t capacity)
      : left_(rounded(capacity) + kPieces * kSlotPad),
        block_(static_cast<T*>(std::aligned_alloc(64, left_ * sizeof(T)))),
        next_(block_.get()) {
    if (next_ == nullptr) throw std::bad_alloc();
  }

  T* take(int64_t count) {
    T* piece = next_;
    next_ += rounded(count);
    left_ -= rounded(count);
    TORCH_INTERNAL_ASSERT(left_ >= 0, "scratch memory too small");
    return piece;
  }
  T* take_zeros(int64_t count) {
    T* piece = take(count);
    std::fill(piece, piece + count, T(0));
    return piece;
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  static constexpr int64_t kPieces = 64;  // each may round up once
  static int64_t rounded(int64_t count) { return padded(count); }

  int64_t left_;
  std::unique_ptr<T, Free> block_;
  T* next_;
};

/// Rows as a tile that is dense: in place where the tensor is.
template <typename T>
Tile<T> read_dense(const Rows<T>& rows, int64_t batch, int64_t head,
                   int64_t first, int64_t count, T* buffer) {
  const Tile<T> tile = rows.read(batch, head, first, count, buffer);
  if (tile.stride == rows.width() || count <= 1) {
    return {tile.data, rows.width()};
  }
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(tile.data + i * tile.stride, rows.width(),
                buffer + i * rows.width());
  }
  return {buffer, rows.width()};
}

/// dst[j*ldd + i] = factor * src[i*stride + j], the padding of each row 0.
template <typename T>
void transpose_padded(int64_t rows, int64_t cols, Tile<T> src, T factor, T* dst,
                      int64_t ldd) {
  softmax_kernels<T>().transpose(rows, cols, src.data, src.stride, factor, dst,
                                 ldd);
  if (rows == padded(rows)) return;
  for (int64_t j = 0; j < cols; ++j) {
    std::fill(dst + j * ldd + rows, dst + j * ldd + padded(rows), T(0));
  }
}

/// C[m,n] += or = A[m,k] B[k,n] for a long k, cut so that B stays in L1.
template <typename T>
void deep_gemm(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
               const T* b, int64_t ldb, T* c, int64_t ldc, bool accumulate) {
  const auto& tiles = tile_kernels<T>();
  int64_t p = 0;
  do {
    const int64_t depth = std::min(kDepth, k - p);
    tiles.gemm(m, n, depth, a + p, lda, 1, b + p * ldb, ldb, c, ldc,
               accumulate || p > 0);
    p += depth;
  } while (p < k);
}

/// A part of one sequence and head: what one thread does at a time.
struct Split {
  int64_t sequence, head;
  int64_t begin, length;  ///< tokens, within the sequence
  int64_t index;          ///< in the list
  int64_t siblings;       ///< splits of this sequence and head
};

struct Splits {
  std::vector<Split> list;     ///< by sequence, head, begin
  std::vector<int64_t> first;  ///< [sequence * heads + head], and the end
};

/// Cuts sequences so that there is work for many threads, whatever the number
/// of threads is: the sums' order, and so the bits, depend on shapes alone.
inline Splits split_tokens(const std::vector<int64_t>& lengths, int64_t heads,
                           int64_t least, int64_t most) {
  constexpr int64_t kWanted = 64;
  int64_t total = 0;
  for (int64_t length : lengths) total += length * heads;
  const int64_t target = (total / kWanted + kTokens - 1) / kTokens * kTokens;
  const int64_t size = std::clamp(target, least, std::max(least, most));
  Splits splits;
  splits.first.push_back(0);
  for (size_t s = 0; s < lengths.size(); ++s) {
    const int64_t siblings = (lengths[s] + size - 1) / size;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < siblings; ++i) {
        const int64_t begin = i * size;
        splits.list.push_back({static_cast<int64_t>(s), head, begin,
                               std::min(size, lengths[s] - begin),
                               static_cast<int64_t>(splits.list.size()),
                               siblings});
      }
      splits.first.push_back(static_cast<int64_t>(splits.list.size()));
    }
  }
  return splits;
}

/// Whether some head is cut, so that parts must be put together.
inline bool any_cut(const Splits& splits) {
  return std::any_of(splits.list.begin(), splits.list.end(),
                     [](const Split& split) { return split.siblings > 1; });
}

/// dst += parts begin..end, in order.
template <typename T>
void add_parts(const T* parts, int64_t part_size, int64_t begin, int64_t end,
               int64_t count, T* dst) {
  for (int64_t i = begin; i < end; ++i) {
    tile_kernels<T>().add(count, parts + i * part_size, dst);
  }
}

/// The dropout of one map of an op.
class Dropout {
 public:
  Dropout(double p, const at::Tensor& seed, ops::DropoutMap map)
      : on_(p > 0), map_(map) {
    if (!on_) return;
    seed_low_ = seed[0].item<int64_t>();
    seed_high_ = seed[1].item<int64_t>();
    tile_.threshold = ops::dropout_threshold(p);
    tile_.scale = 1 / (1 - p);
  }

  /// A thread's own tile: keys of the tokens it is at.
  class Tiles {
   public:
    explicit Tiles(const Dropout& dropout)
        : dropout_(dropout), tile_(dropout.tile_) {}

    /// Moves to tokens [first, first + rows), rows <= kTokens.
    void move_to(int64_t sequence, int64_t head, int64_t first, int64_t rows) {
      if (!dropout_.on_) return;
      const uint64_t key =
          ops::dropout_head_key(dropout_.seed_low_, dropout_.seed_high_,
                                dropout_.map_, sequence, head);
      for (int64_t i = 0; i < rows; ++i) {
        keys_[i] = ops::dropout_token_key(key, first + i);
      }
    }
    const DropoutTile* at_slot(int64_t slot) {
      if (!dropout_.on_) return nullptr;
      tile_.token_keys = keys_.data();
      tile_.first_slot = static_cast<uint32_t>(slot);
      return &tile_;
    }

   private:
    const Dropout& dropout_;
    DropoutTile tile_;
    std::array<uint64_t, kTokens> keys_;
  };

 private:
  bool on_;
  ops::DropoutMap map_;
  int64_t seed_low_ = 0, seed_high_ = 0;
  DropoutTile tile_ = {};
};

inline double scale_of(const at::Tensor& query, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

/// Calls `body` with float or double, whichever `query` is computed in.
template <typename Body>
void dispatch_compute(const at::Tensor& query, Body body) {
  if (query.scalar_type() == at::kDouble) {
    body.template operator()<double>();
  } else {
    body.template operator()<float>();
  }
}

/// A gradient may come with any strides; Rows wants the last one to be 1.
inline at::Tensor with_unit_stride(const at::Tensor& x) {
  return x.size(-1) <= 1 || x.stride(-1) == 1 ? x : x.contiguous();
}

/// A gradient [batch, heads, length] in the shape and dtype of the weight.
inline at::Tensor like_weight(const at::Tensor& gradient,
                              const at::Tensor& weight) {
  return (weight.dim() == 2 ? gradient.sum(1) : gradient)
      .to(weight.scalar_type());
}

/// key_weight, [batch, 1 or heads, length] in T.
template <typename T>
class KeyWeight {
 public:
  explicit KeyWeight(const std::optional<at::Tensor>& weight) {
    if (!weight.has_value()) return;
    values_ = weight_as<T>(*weight);
    data_ = values_.template const_data_ptr<T>();
    const int64_t length = values_.size(2);
    batch_stride_ = values_.size(1) * length;
    head_stride_ = weight->dim() == 3 ? length : 0;
  }
  /// From token `first` of one head; null where there is no weight.
  const T* at(int64_t batch, int64_t head, int64_t first) const {
    if (data_ == nullptr) return nullptr;
    return data_ + batch * batch_stride_ + head * head_stride_ + first;
  }

 private:
  at::Tensor values_;
  const T* data_ = nullptr;
  int64_t batch_stride_ = 0, head_stride_ = 0;
};

}  // namespace luna::cpu
