#pragma once

#include <cstdint>

// Plain descriptions of tensors and of packed sequences, read by kernels and
// filled in by the bindings (tensors.h). No ATen here: it costs 27 s a file.

namespace luna::cuda {

enum class Scalar : int { kFloat, kDouble, kHalf, kBFloat16 };

/// Rows of a tensor [batch, heads, length, width], unit last stride. The dtype
/// is looked up at run time: kernels are compiled once for each dtype they
/// compute in, not for each they read.
struct Rows {
  void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;  ///< strides
  Scalar type = Scalar::kFloat;
};

/// A number for each row; null data counts as 1.
template <typename T>
struct Factor {
  const T* data = nullptr;
  int64_t batch = 0, head = 0;
};

/// Dropout of a row's entries (ops/dropout.h).
struct RowDropoutRule {
  const int64_t* seed = nullptr;  ///< int64[2] on the device; null: none
  uint32_t threshold = 0;
  float scale = 1;
};

/// Rows, each times its factor.
template <typename T>
struct Operand {
  Rows rows;
  Factor<T> factor;
};

/// Sequences cut into pieces of `size` tokens. Packed ones lie one after the
/// other in batch entry 0, at offsets that only the device knows; then `bound`
/// pieces are enough for any offsets.
struct Cut {
  const int64_t* begin = nullptr;  ///< [sequences + 1]; null: not packed
  const int64_t* first = nullptr;  ///< [sequences + 1]: first piece of each
  int64_t sequences = 0;
  int64_t length = 0;  ///< of every sequence, where not packed
  int64_t size = 1;
  int64_t per_sequence = 0;  ///< pieces of each, where not packed
  int64_t bound = 0;
};

}  // namespace luna::cuda
