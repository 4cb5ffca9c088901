#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace luna::ops {

/// What neighbours have, channel by channel (a depthwise convolution):
///
///   out[t,c] = sum_ij w[c,i,j] x[t + (i - I/2) columns + (j - J/2), c]
///
/// over those in the same sequence whose column is in the same picture's. x
/// [B,n,D]; weight [D,I,J], I and J odd, float32 (float64 for float64). columns
/// 0: a sequence is one row, and I is 1. starts [S+1] int32 or int64: packed
/// sequences, x [1,T,D]. Sums are float32 (float64), the result is x's dtype.
/// The same input gives the same bits.
at::Tensor local_sum(const at::Tensor& x, const at::Tensor& weight,
                     int64_t columns = 0,
                     const std::optional<at::Tensor>& starts = std::nullopt);

void check_local_sum(const at::Tensor& x, const at::Tensor& weight,
                     int64_t columns, const std::optional<at::Tensor>& starts);

}  // namespace luna::ops
