#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/cpu/simd/tile.h"

// Tensors [batch, heads, length, width] as the CPU kernels see them: rows of
// any dtype and any strides, read and written in tiles of T.

namespace luna::cpu {

inline Scalar scalar_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return Scalar::kDouble;
    case at::kBFloat16:
      return Scalar::kBFloat16;
    case at::kHalf:
      return Scalar::kHalf;
    default:
      return Scalar::kFloat;
  }
}

template <typename T>
constexpr Scalar scalar_for =
    std::is_same_v<T, double> ? Scalar::kDouble : Scalar::kFloat;

/// A tile of rows in T, `stride` elements apart.
template <typename T>
struct Tile {
  const T* data;
  int64_t stride;
};

template <typename T>
class Rows {
 public:
  Rows() = default;
  /// A batch of 1 is repeated where `repeat_batch` (a shared query).
  explicit Rows(const at::Tensor& x, bool repeat_batch = false)
      : data_(static_cast<char*>(x.data_ptr())),
        type_(scalar_of(x.scalar_type())),
        element_(x.element_size()),
        batch_stride_(repeat_batch && x.size(0) == 1 ? 0 : x.stride(0)),
        head_stride_(x.stride(1)),
        row_stride_(x.stride(2)),
        width_(x.size(3)) {}

  /// One token x [batch, heads, width], each head a sequence of one row.
  static Rows token(const at::Tensor& x) {
    return Rows(x, x.stride(0), x.stride(1), 0);
  }
  /// The same with all heads of the batch as the rows of one sequence; x must
  /// have one stride from each head to the next.
  static Rows token_as_rows(const at::Tensor& x) {
    return Rows(x, 0, 0, x.stride(x.size(1) > 1 ? 1 : 0));
  }

  bool defined() const { return data_ != nullptr; }
  int64_t width() const { return width_; }

  /// Rows [first, first + count) of one head: in place where the memory holds
  /// T already, else converted into `buffer` (count * width numbers).
  Tile<T> read(int64_t batch, int64_t head, int64_t first, int64_t count,
               T* buffer) const {
    const char* source = at(batch, head, first);
    if (type_ == scalar_for<T>) {
      return {reinterpret_cast<const T*>(source), row_stride_};
    }
    tile_kernels<T>().load(type_, count, width_, source, row_stride_, buffer,
                           width_);
    return {buffer, width_};
  }

  /// Asks for the rows that will be read next. Past the end does no harm.
  /// Inlined always: GCC takes a call that only prefetches for a call that
  /// does nothing, and drops it.
  __attribute__((always_inline)) void prefetch(int64_t batch, int64_t head,
                                               int64_t first,
                                               int64_t count) const {
    constexpr int64_t kLine = 64;
    const char* row = at(batch, head, first);
    for (int64_t i = 0; i < count; ++i, row += element_ * row_stride_) {
      for (int64_t j = 0; j < element_ * width_; j += kLine) {
        __builtin_prefetch(row + j, 0, 2);
      }
    }
  }

  void write(int64_t batch, int64_t head, int64_t first, int64_t count,
             const T* source, int64_t stride) const {
    tile_kernels<T>().store(type_, count, width_, source, stride,
                            at(batch, head, first), row_stride_);
  }

  /// Where one may write T straight into the tensor, else null.
  T* in_place(int64_t batch, int64_t head, int64_t first) const {
    return type_ == scalar_for<T> ? reinterpret_cast<T*>(at(batch, head, first))
                                  : nullptr;
  }
  int64_t row_stride() const { return row_stride_; }

 private:
  Rows(const at::Tensor& x, int64_t batch_stride, int64_t head_stride,
       int64_t row_stride)
      : data_(static_cast<char*>(x.data_ptr())),
        type_(scalar_of(x.scalar_type())),
        element_(x.element_size()),
        batch_stride_(batch_stride),
        head_stride_(head_stride),
        row_stride_(row_stride),
        width_(x.size(-1)) {}

  char* at(int64_t batch, int64_t head, int64_t first) const {
    return data_ + element_ * (batch * batch_stride_ + head * head_stride_ +
                               first * row_stride_);
  }

  char* data_ = nullptr;
  Scalar type_ = Scalar::kFloat;
  int64_t element_ = 0, batch_stride_ = 0, head_stride_ = 0, row_stride_ = 0,
          width_ = 0;
};

/// One sequence of a batch, or of a packed tensor (then batch is 0).
struct Sequence {
  int64_t batch;  ///< of query, key, value
  int64_t query_begin, query_length;
  int64_t key_begin, key_length;
};

/// Sequence i of the result owns row i of per-sequence tensors (states).
/// cu_seqlens: int32 or int64 [S+1], undefined where not packed.
inline std::vector<Sequence> list_sequences(int64_t batch, int64_t query_length,
                                            int64_t key_length,
                                            const at::Tensor& cu_seqlens_q,
                                            const at::Tensor& cu_seqlens_k) {
  std::vector<Sequence> sequences;
  const auto offsets = [](const at::Tensor& x) {
    const at::Tensor longs = x.to(at::kLong).contiguous();
    const int64_t* begin = longs.const_data_ptr<int64_t>();
    return std::vector<int64_t>(begin, begin + longs.numel());
  };
  if (!cu_seqlens_q.defined() && !cu_seqlens_k.defined()) {
    for (int64_t b = 0; b < batch; ++b) {
      sequences.push_back({b, 0, query_length, 0, key_length});
    }
    return sequences;
  }
  // A side that is not packed has a batch entry per sequence instead.
  const auto q =
      cu_seqlens_q.defined() ? offsets(cu_seqlens_q) : std::vector<int64_t>();
  const auto k =
      cu_seqlens_k.defined() ? offsets(cu_seqlens_k) : std::vector<int64_t>();
  const size_t count = std::max(q.size(), k.size()) - 1;
  for (size_t s = 0; s < count; ++s) {
    Sequence one = {0, 0, query_length, 0, key_length};
    if (!q.empty()) {
      one.query_begin = q[s];
      one.query_length = q[s + 1] - q[s];
    }
    if (!k.empty()) {
      one.key_begin = k[s];
      one.key_length = k[s + 1] - k[s];
    }
    sequences.push_back(one);
  }
  return sequences;
}

/// key_weight as contiguous T of shape [batch, 1 or heads, length].
template <typename T>
at::Tensor weight_as(const at::Tensor& weight) {
  const at::Tensor shaped = weight.dim() == 2 ? weight.unsqueeze(1) : weight;
  return shaped.to(scalar_for<T> == Scalar::kDouble ? at::kDouble : at::kFloat)
      .contiguous();
}

}  // namespace luna::cpu
