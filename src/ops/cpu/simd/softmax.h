#pragma once

#include <algorithm>
#include <cstdint>

// Softmax and activations on tiles of attention maps, rows = tokens, columns
// = slots of the packed memory, so that one layout serves both directions:
// pack normalises each column, unpack each row. Everything is to the base 2:
// the scores come multiplied by log2(e).
//
// Columns are padded to a multiple of kSlotPad, and the kernels work on whole
// vectors; a padded column must be given the weight 0, or be ignored.
//
// Weights of keys (null: all 1) multiply the exponentials; a key of weight 0
// takes no part.

namespace luna::cpu {

constexpr int64_t kSlotPad = 16;

/// Dropout of one tile (see ops/dropout.h); a null pointer: none.
struct DropoutTile {
  const uint64_t* token_keys;  ///< one for each row
  uint32_t first_slot;         ///< the slot of column 0
  uint32_t threshold;
  double scale;  ///< 1 / (1 - p)
};

enum class Activation { kSoftplus, kElu };

/// 1 / sum of a softmax: 0 where there was no key, and always finite.
template <typename T>
T inverse_of(T sum) {
  return sum == T(0) ? T(0) : T(1) / std::max(sum, T(1e-37));
}

template <typename T>
struct SoftmaxKernels {
  /// Where a running maximum starts: below every score, yet finite.
  static constexpr T kLowest = T(-1e38);

  /// One step of the online softmax down each column.
  ///   max' = max(max, x), factor = 2^(max - max'), e = weight * 2^(x - max'),
  ///   sum = sum * factor + e, x = dropped e.
  /// False where no maximum rose, that is, all factors are 1.
  bool (*columns_forward)(int64_t rows, int64_t cols, T* x, int64_t ldx,
                          const T* row_weight, T* max, T* sum, T* factor,
                          const DropoutTile* dropout);
  /// Its gradient: from scores x and dp = d loss / d (dropped p)
  ///   p = weight * 2^(x - max) * inverse,
  ///   ds = p * (dropped dp - delta); x = dropped p, dp = gain * ds.
  /// With weights, row_sum[i] += sum_j ds / weight, which is their gradient
  /// and finite where they are 0.
  void (*columns_backward)(int64_t rows, int64_t cols, T* x, int64_t ldx, T* dp,
                           int64_t lddp, const T* max, const T* inverse,
                           const T* delta, T gain, const T* row_weight,
                           T* row_sum, const DropoutTile* dropout);
  /// x = softmax of each row, then dropped; 0 for a row without any key.
  /// `divided`: each weight counts in the sum, but is left out of x.
  void (*rows_forward)(int64_t rows, int64_t cols, T* x, int64_t ldx,
                       const T* col_weight, bool divided,
                       const DropoutTile* dropout);
  /// Its gradient, from p before dropout (divided by the weight, with
  /// weights) and dp = d loss / d (dropped p):
  ///   ds = p * (dropped dp - sum_j p * dropped dp);
  ///   p = dropped p, dp = gain * ds.
  /// With weights, col_sum[j] += sum_i ds / weight.
  void (*rows_backward)(int64_t rows, int64_t cols, T* p, int64_t ldp, T* dp,
                        int64_t lddp, T gain, const T* col_weight, T* col_sum,
                        const DropoutTile* dropout);
  /// x = dropped omega(x); slope (null: not wanted) = d x' / d x.
  /// omega: log2(1 + 2^x), or elu(x) + 1.
  void (*activate)(Activation activation, int64_t rows, int64_t cols, T* x,
                   int64_t ldx, T* slope, int64_t lds,
                   const DropoutTile* dropout);
  /// x *= y, element by element.
  void (*multiply)(int64_t rows, int64_t cols, T* x, int64_t ldx, const T* y,
                   int64_t ldy);
  /// dst[j*ldd + i] = factor * src[i*lds + j] for i < rows, j < cols.
  void (*transpose)(int64_t rows, int64_t cols, const T* src, int64_t lds,
                    T factor, T* dst, int64_t ldd);
  /// One token of a sum of outer products, any number of columns:
  ///   c[i,:] += x[i] y; out += weight[i] c[i,:].
  void (*advance)(int64_t rows, int64_t cols, const T* x, const T* y, T* c,
                  int64_t ldc, const T* weight, T* out);
};

template <typename T>
const SoftmaxKernels<T>& softmax_kernels();
template <>
const SoftmaxKernels<float>& softmax_kernels<float>();
template <>
const SoftmaxKernels<double>& softmax_kernels<double>();

}  // namespace luna::cpu
