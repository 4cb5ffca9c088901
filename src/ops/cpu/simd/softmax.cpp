#include "ops/cpu/simd/softmax.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "ops/cpu/simd/isa.h"
#include "ops/cpu/simd/targets.h"
#include "ops/dropout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/simd/softmax.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: highway.h is then read once for each target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luna::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What 2^x is made of: 2^f = 1 + f q(f) for |f| <= 1/2, q of least relative
// error (2e-9 and 4e-18), highest power first.
template <typename T>
struct Exp2;
template <>
struct Exp2<float> {
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  static constexpr float kSmallest = -125.0f;
  static constexpr int kExponentBit = 23;
  static constexpr float kPolynomial[] = {
      1.53533617866315426e-4f, 1.33988743782122814e-3f,
      9.61843735843784511e-3f, 5.55033247125726235e-2f,
      2.40226479136187037e-1f, 6.93147202854982529e-1f};
};
template <>
struct Exp2<double> {
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kSmallest = -1021.0;
  static constexpr int kExponentBit = 52;
  static constexpr double kPolynomial[] = {
      4.43476892868580427e-10, 7.07378318445350136e-9, 1.01781995864474433e-7,
      1.3215435282680694e-6,   1.52527334930959411e-5, 1.54035304571113614e-4,
      1.33335581467746489e-3,  9.61812910759412064e-3, 5.55041086648200831e-2,
      2.40226506959101313e-1,  6.93147180559945326e-1};
};

// 2^x for x <= 126; 0 below kSmallest (so -inf gives 0); NaN stays NaN.
template <class D, class V>
HWY_INLINE V exp2(D d, V x) {
  using T = hn::TFromD<D>;
  using Parts = Exp2<T>;
  const hn::RebindToUnsigned<D> du;
  // Adding kRound leaves the nearest integer in the low bits.
  const V rounded = hn::Add(x, hn::Set(d, Parts::kRound));
  const V f = hn::Sub(x, hn::Sub(rounded, hn::Set(d, Parts::kRound)));
  V q = hn::Set(d, Parts::kPolynomial[0]);
  for (size_t i = 1; i < std::size(Parts::kPolynomial); ++i) {
    q = hn::MulAdd(q, f, hn::Set(d, Parts::kPolynomial[i]));
  }
  const V mantissa = hn::MulAdd(q, f, hn::Set(d, T(1)));
  const auto exponent =
      hn::ShiftLeft<Parts::kExponentBit>(hn::BitCast(du, rounded));
  const V value = hn::BitCast(d, hn::Add(hn::BitCast(du, mantissa), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, Parts::kSmallest)), value);
}

// The gradient of a weight of 0 needs 2^(score - max) of a key that max did
// not see: it may be anything, so it is cut before it overflows.
template <class D, class V>
HWY_INLINE V exp2_capped(D d, V x) {
  const V cap = hn::Set(d, hn::TFromD<D>(96));
  return exp2(d, hn::IfThenElse(hn::Gt(x, cap), cap, x));  // NaN stays NaN
}

// scale where the weight is kept, 0 where it is dropped.
template <class D>
HWY_INLINE hn::Vec<D> keep_factor(D d, const DropoutTile& dropout, int64_t row,
                                  int64_t col) {
  using T = hn::TFromD<D>;
  const hn::Rebind<uint32_t, D> du;
  const uint64_t key = dropout.token_keys[row];
  const uint32_t first = dropout.first_slot + static_cast<uint32_t>(col);
  auto x = hn::Mul(hn::Iota(du, first), hn::Set(du, ops::kDropoutSlotStep));
  x = hn::Add(x, hn::Set(du, static_cast<uint32_t>(key)));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)),
              hn::Set(du, ops::kDropoutMultiplier1));
  x = hn::Add(hn::Xor(x, hn::ShiftRight<15>(x)),
              hn::Set(du, static_cast<uint32_t>(key >> 32)));
  x = hn::Mul(x, hn::Set(du, ops::kDropoutMultiplier2));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  const auto scale = hn::Set(d, static_cast<T>(dropout.scale));
  if constexpr (sizeof(T) == sizeof(uint32_t)) {
    const auto dropped = hn::Lt(x, hn::Set(du, dropout.threshold));
    return hn::IfThenZeroElse(hn::RebindMask(d, dropped), scale);
  } else {
    const hn::RebindToUnsigned<D> du64;
    const auto dropped = hn::Lt(hn::PromoteTo(du64, x),
                                hn::Set(du64, uint64_t{dropout.threshold}));
    return hn::IfThenZeroElse(hn::RebindMask(d, dropped), scale);
  }
}

template <bool kDropout, bool kWeight, typename T>
bool columns_forward_impl(int64_t rows, int64_t cols, T* x, int64_t ldx,
                          const T* row_weight, T* max, T* sum, T* factor,
                          const DropoutTile* dropout) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  if constexpr (kWeight) {
    for (int64_t i = 0; i < rows; ++i) {
      if (row_weight[i] > T(0)) continue;
      std::fill_n(x + i * ldx, cols, -std::numeric_limits<T>::infinity());
    }
  }
  bool rose = false;
  for (int64_t j = 0; j < cols; j += kLanes) {
    const auto old_max = hn::LoadU(d, max + j);
    auto max0 = old_max, max1 = old_max;  // two chains hide the latency
    int64_t i = 0;
    for (; i + 2 <= rows; i += 2) {
      max0 = hn::Max(max0, hn::LoadU(d, x + i * ldx + j));
      max1 = hn::Max(max1, hn::LoadU(d, x + (i + 1) * ldx + j));
    }
    if (i < rows) max0 = hn::Max(max0, hn::LoadU(d, x + i * ldx + j));
    const auto new_max = hn::Max(max0, max1);
    rose |= !hn::AllTrue(d, hn::Eq(new_max, old_max));
    const auto scale = exp2(d, hn::Sub(old_max, new_max));
    auto total = hn::Mul(hn::LoadU(d, sum + j), scale);
    for (i = 0; i < rows; ++i) {
      T* at = x + i * ldx + j;
      auto e = exp2(d, hn::Sub(hn::LoadU(d, at), new_max));
      if constexpr (kWeight) e = hn::Mul(e, hn::Set(d, row_weight[i]));
      total = hn::Add(total, e);
      if constexpr (kDropout) e = hn::Mul(e, keep_factor(d, *dropout, i, j));
      hn::StoreU(e, d, at);
    }
    hn::StoreU(new_max, d, max + j);
    hn::StoreU(total, d, sum + j);
    hn::StoreU(scale, d, factor + j);
  }
  return rose;
}

// Calls `body` with the template arguments <has dropout, has weights>.
template <typename Body>
void with_options(const DropoutTile* dropout, const void* weight, Body body) {
  if (dropout == nullptr) {
    if (weight == nullptr) {
      body.template operator()<false, false>();
    } else {
      body.template operator()<false, true>();
    }
  } else if (weight == nullptr) {
    body.template operator()<true, false>();
  } else {
    body.template operator()<true, true>();
  }
}

template <typename T>
bool columns_forward(int64_t rows, int64_t cols, T* x, int64_t ldx,
                     const T* row_weight, T* max, T* sum, T* factor,
                     const DropoutTile* dropout) {
  bool rose = false;
  with_options(dropout, row_weight, [&]<bool kDropout, bool kWeight>() {
    rose = columns_forward_impl<kDropout, kWeight>(
        rows, cols, x, ldx, row_weight, max, sum, factor, dropout);
  });
  return rose;
}

template <bool kDropout, bool kWeight, typename T>
void columns_backward_impl(int64_t rows, int64_t cols, T* x, int64_t ldx, T* dp,
                           int64_t lddp, const T* max, const T* inverse,
                           const T* delta, T gain, const T* row_weight,
                           T* row_sum, const DropoutTile* dropout) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const auto vgain = hn::Set(d, gain);
  for (int64_t i = 0; i < rows; ++i) {
    T* xi = x + i * ldx;
    T* di = dp + i * lddp;
    const auto weight = hn::Set(d, kWeight ? row_weight[i] : T(1));
    auto total = hn::Zero(d);
    for (int64_t j = 0; j < cols; j += kLanes) {
      const auto score = hn::Sub(hn::LoadU(d, xi + j), hn::LoadU(d, max + j));
      auto p = kWeight ? exp2_capped(d, score) : exp2(d, score);
      p = hn::Mul(p, hn::LoadU(d, inverse + j));
      auto gradient = hn::LoadU(d, di + j);
      auto dropped = p;
      if constexpr (kDropout) {
        const auto keep = keep_factor(d, *dropout, i, j);
        gradient = hn::Mul(gradient, keep);
        dropped = hn::Mul(p, keep);
      }
      auto ds = hn::Mul(p, hn::Sub(gradient, hn::LoadU(d, delta + j)));
      if constexpr (kWeight) {
        total = hn::Add(total, ds);
        ds = hn::Mul(ds, weight);
        dropped = hn::Mul(dropped, weight);
      }
      hn::StoreU(dropped, d, xi + j);
      hn::StoreU(hn::Mul(ds, vgain), d, di + j);
    }
    if constexpr (kWeight) {
      row_sum[i] += hn::GetLane(hn::SumOfLanes(d, total));
    }
  }
}

template <typename T>
void columns_backward(int64_t rows, int64_t cols, T* x, int64_t ldx, T* dp,
                      int64_t lddp, const T* max, const T* inverse,
                      const T* delta, T gain, const T* row_weight, T* row_sum,
                      const DropoutTile* dropout) {
  with_options(dropout, row_weight, [&]<bool kDropout, bool kWeight>() {
    columns_backward_impl<kDropout, kWeight>(rows, cols, x, ldx, dp, lddp, max,
                                             inverse, delta, gain, row_weight,
                                             row_sum, dropout);
  });
}

template <bool kDropout, bool kWeight, typename T>
void rows_forward_impl(int64_t rows, int64_t cols, T* x, int64_t ldx,
                       const T* col_weight, bool divided,
                       const DropoutTile* dropout) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const auto lowest = hn::Set(d, SoftmaxKernels<T>::kLowest);
  for (int64_t i = 0; i < rows; ++i) {
    T* xi = x + i * ldx;
    auto max = lowest;
    for (int64_t j = 0; j < cols; j += kLanes) {
      auto score = hn::LoadU(d, xi + j);
      if constexpr (kWeight) {
        const auto weight = hn::LoadU(d, col_weight + j);
        score = hn::IfThenElse(hn::Gt(weight, hn::Zero(d)), score, lowest);
      }
      max = hn::Max(max, score);
    }
    max = hn::MaxOfLanes(d, max);
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < cols; j += kLanes) {
      const auto score = hn::Sub(hn::LoadU(d, xi + j), max);
      auto e = kWeight ? exp2_capped(d, score) : exp2(d, score);
      if constexpr (kWeight) {
        const auto weighted = hn::Mul(e, hn::LoadU(d, col_weight + j));
        sum = hn::Add(sum, weighted);
        if (!divided) e = weighted;
      } else {
        sum = hn::Add(sum, e);
      }
      hn::StoreU(e, d, xi + j);
    }
    const T total = hn::GetLane(hn::SumOfLanes(d, sum));
    const auto inverse = hn::Set(d, inverse_of(total));
    for (int64_t j = 0; j < cols; j += kLanes) {
      auto p = hn::Mul(hn::LoadU(d, xi + j), inverse);
      if constexpr (kDropout) p = hn::Mul(p, keep_factor(d, *dropout, i, j));
      hn::StoreU(p, d, xi + j);
    }
  }
}

template <typename T>
void rows_forward(int64_t rows, int64_t cols, T* x, int64_t ldx,
                  const T* col_weight, bool divided,
                  const DropoutTile* dropout) {
  with_options(dropout, col_weight, [&]<bool kDropout, bool kWeight>() {
    rows_forward_impl<kDropout, kWeight>(rows, cols, x, ldx, col_weight,
                                         divided, dropout);
  });
}

template <bool kDropout, bool kWeight, typename T>
void rows_backward_impl(int64_t rows, int64_t cols, T* p, int64_t ldp, T* dp,
                        int64_t lddp, T gain, const T* col_weight, T* col_sum,
                        const DropoutTile* dropout) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const auto vgain = hn::Set(d, gain);
  for (int64_t i = 0; i < rows; ++i) {
    T* pi = p + i * ldp;
    T* di = dp + i * lddp;
    auto dot = hn::Zero(d);
    for (int64_t j = 0; j < cols; j += kLanes) {
      auto gradient = hn::LoadU(d, di + j);
      if constexpr (kDropout) {
        gradient = hn::Mul(gradient, keep_factor(d, *dropout, i, j));
        hn::StoreU(gradient, d, di + j);
      }
      auto p_ij = hn::LoadU(d, pi + j);
      if constexpr (kWeight) {
        p_ij = hn::Mul(p_ij, hn::LoadU(d, col_weight + j));
      }
      dot = hn::MulAdd(p_ij, gradient, dot);
    }
    const auto delta = hn::SumOfLanes(d, dot);
    for (int64_t j = 0; j < cols; j += kLanes) {
      auto p_ij = hn::LoadU(d, pi + j);
      auto ds = hn::Mul(p_ij, hn::Sub(hn::LoadU(d, di + j), delta));
      if constexpr (kWeight) {
        hn::StoreU(hn::Add(hn::LoadU(d, col_sum + j), ds), d, col_sum + j);
        const auto factor = hn::LoadU(d, col_weight + j);
        ds = hn::Mul(ds, factor);
        p_ij = hn::Mul(p_ij, factor);
      }
      if constexpr (kDropout) {
        p_ij = hn::Mul(p_ij, keep_factor(d, *dropout, i, j));
      }
      if constexpr (kDropout || kWeight) hn::StoreU(p_ij, d, pi + j);
      hn::StoreU(hn::Mul(ds, vgain), d, di + j);
    }
  }
}

template <typename T>
void rows_backward(int64_t rows, int64_t cols, T* p, int64_t ldp, T* dp,
                   int64_t lddp, T gain, const T* col_weight, T* col_sum,
                   const DropoutTile* dropout) {
  with_options(dropout, col_weight, [&]<bool kDropout, bool kWeight>() {
    rows_backward_impl<kDropout, kWeight>(rows, cols, p, ldp, dp, lddp, gain,
                                          col_weight, col_sum, dropout);
  });
}

// omega(x) and its slope.
template <Activation kActivation, class D, class V>
HWY_INLINE V omega(D d, V x, V& slope) {
  using T = hn::TFromD<D>;
  const V zero = hn::Zero(d), one = hn::Set(d, T(1));
  const V log2e = hn::Set(d, T(1.44269504088896340736));
  const auto positive = hn::Gt(x, zero);
  if constexpr (kActivation == Activation::kSoftplus) {
    // log2(1 + 2^x) = max(x, 0) + log2(1 + 2^-|x|): nothing can overflow.
    const V z = exp2(d, hn::Neg(hn::Abs(x)));
    slope = hn::Div(hn::IfThenElse(positive, one, z), hn::Add(one, z));
    return hn::MulAdd(hn::Log1p(d, z), log2e,
                      hn::IfThenZeroElse(hn::Lt(x, zero), x));
  } else {
    const V e = exp2(d, hn::Mul(hn::IfThenZeroElse(positive, x), log2e));
    slope = hn::IfThenElse(positive, one, e);
    return hn::IfThenElse(positive, hn::Add(x, one), e);
  }
}

template <Activation kActivation, typename T>
void activate_impl(int64_t rows, int64_t cols, T* x, int64_t ldx, T* slope,
                   int64_t lds, const DropoutTile* dropout) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; j += kLanes) {
      auto derivative = hn::Undefined(d);
      T* at = x + i * ldx + j;
      auto value = omega<kActivation>(d, hn::LoadU(d, at), derivative);
      if (dropout != nullptr) {
        const auto keep = keep_factor(d, *dropout, i, j);
        value = hn::Mul(value, keep);
        derivative = hn::Mul(derivative, keep);
      }
      hn::StoreU(value, d, at);
      if (slope != nullptr) hn::StoreU(derivative, d, slope + i * lds + j);
    }
  }
}

template <typename T>
void activate(Activation activation, int64_t rows, int64_t cols, T* x,
              int64_t ldx, T* slope, int64_t lds, const DropoutTile* dropout) {
  const auto impl = activation == Activation::kSoftplus
                        ? activate_impl<Activation::kSoftplus, T>
                        : activate_impl<Activation::kElu, T>;
  impl(rows, cols, x, ldx, slope, lds, dropout);
}

template <typename T>
void multiply(int64_t rows, int64_t cols, T* x, int64_t ldx, const T* y,
              int64_t ldy) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; j += kLanes) {
      T* at = x + i * ldx + j;
      hn::StoreU(hn::Mul(hn::LoadU(d, at), hn::LoadU(d, y + i * ldy + j)), d,
                 at);
    }
  }
}

// Four by four (two by two doubles) in 128-bit registers, which every vector
// unit has: a quarter of the loads and stores of one by one.
#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void transpose_block(const float* src, int64_t lds, float factor,
                                float* dst, int64_t ldd) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> pairs;
  const auto scale = hn::Set(d, factor);
  const auto r0 = hn::Mul(hn::LoadU(d, src), scale);
  const auto r1 = hn::Mul(hn::LoadU(d, src + lds), scale);
  const auto r2 = hn::Mul(hn::LoadU(d, src + 2 * lds), scale);
  const auto r3 = hn::Mul(hn::LoadU(d, src + 3 * lds), scale);
  const auto a = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
  const auto b = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
  const auto c = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
  const auto e = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, a, b)), d, dst);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, a, b)), d, dst + ldd);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, c, e)), d,
             dst + 2 * ldd);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, c, e)), d,
             dst + 3 * ldd);
}

HWY_INLINE void transpose_block(const double* src, int64_t lds, double factor,
                                double* dst, int64_t ldd) {
  const hn::FixedTag<double, 2> d;
  const auto scale = hn::Set(d, factor);
  const auto r0 = hn::Mul(hn::LoadU(d, src), scale);
  const auto r1 = hn::Mul(hn::LoadU(d, src + lds), scale);
  hn::StoreU(hn::InterleaveLower(d, r0, r1), d, dst);
  hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, dst + ldd);
}
#else
template <typename T>
HWY_INLINE void transpose_block(const T* src, int64_t lds, T factor, T* dst,
                                int64_t ldd) {
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 4; ++j)
      dst[j * ldd + i] = factor * src[i * lds + j];
  }
}
#endif

template <typename T>
void transpose(int64_t rows, int64_t cols, const T* src, int64_t lds, T factor,
               T* dst, int64_t ldd) {
  constexpr int64_t kBlock =
      HWY_TARGET == HWY_SCALAR ? 4 : 16 / static_cast<int64_t>(sizeof(T));
  const int64_t whole_rows = rows / kBlock * kBlock;
  int64_t j = 0;
  for (; j + kBlock <= cols; j += kBlock) {
    for (int64_t i = 0; i < whole_rows; i += kBlock) {
      transpose_block(src + i * lds + j, lds, factor, dst + j * ldd + i, ldd);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {  // the rest: right and bottom
    for (int64_t k = i < whole_rows ? j : 0; k < cols; ++k) {
      dst[k * ldd + i] = factor * src[i * lds + k];
    }
  }
}

template <typename T>
void advance(int64_t rows, int64_t cols, const T* x, const T* y, T* c,
             int64_t ldc, const T* weight, T* out) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  int64_t j = 0;
  for (; j + 2 * kLanes <= cols; j += 2 * kLanes) {
    const auto y0 = hn::LoadU(d, y + j), y1 = hn::LoadU(d, y + j + kLanes);
    auto out0 = hn::LoadU(d, out + j), out1 = hn::LoadU(d, out + j + kLanes);
    for (int64_t i = 0; i < rows; ++i) {
      T* at = c + i * ldc + j;
      const auto xi = hn::Set(d, x[i]), wi = hn::Set(d, weight[i]);
      const auto c0 = hn::MulAdd(xi, y0, hn::LoadU(d, at));
      const auto c1 = hn::MulAdd(xi, y1, hn::LoadU(d, at + kLanes));
      hn::StoreU(c0, d, at);
      hn::StoreU(c1, d, at + kLanes);
      out0 = hn::MulAdd(wi, c0, out0);
      out1 = hn::MulAdd(wi, c1, out1);
    }
    hn::StoreU(out0, d, out + j);
    hn::StoreU(out1, d, out + j + kLanes);
  }
  for (int64_t i = 0; i < rows && j < cols; ++i) {
    for (int64_t tail = j; tail < cols; ++tail) {
      T& at = c[i * ldc + tail];
      at += x[i] * y[tail];
      out[tail] += weight[i] * at;
    }
  }
}

template <typename T>
const SoftmaxKernels<T>* table() {
  static constexpr SoftmaxKernels<T> kKernels = {
      columns_forward<T>, columns_backward<T>, rows_forward<T>,
      rows_backward<T>,   activate<T>,         multiply<T>,
      transpose<T>,       advance<T>};
  return &kKernels;
}

const SoftmaxKernels<float>* float_softmax_kernels() { return table<float>(); }
const SoftmaxKernels<double>* double_softmax_kernels() {
  return table<double>();
}

}  // namespace luna::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luna::cpu {
HWY_EXPORT(float_softmax_kernels);
HWY_EXPORT(double_softmax_kernels);

template <>
const SoftmaxKernels<float>& softmax_kernels<float>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(float_softmax_kernels)();
  }();
  return *kernels;
}

template <>
const SoftmaxKernels<double>& softmax_kernels<double>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(double_softmax_kernels)();
  }();
  return *kernels;
}

}  // namespace luna::cpu
#endif
