#pragma once

#include "ops/cuda/rows.h"
#include "ops/cuda/universal_table.h"

namespace luna::cuda {

/// The feature map phi over rows x [batch, heads, length, width].
template <typename T>
struct FeatureMap {
  TableShape shape;
  const T* table;
  const T *weight, *bias;  ///< [heads or 1, M, width], [heads or 1, M]
  bool per_head;
  bool nonneg;
  int64_t projections, width;
  T factor;  ///< 1 / sqrt(M)
  int64_t features() const { return projections * shape.channels; }
};

struct FeatureRows {
  Rows x;
  int64_t batch, heads, length;
};

template <typename T>
void features_forward(const FeatureMap<T>& map, const FeatureRows& rows,
                      const Rows& phi, cudaStream_t stream);

/// Between which knots the segments of sums lie: those of all channels, or each
/// channel's own, which are fewer where each has a hidden layer of its own.
enum class Knots { kAll, kOwn };

/// From the gradient of phi (T, contiguous) to that of x, and to partial sums
/// for the parameters: [heads, parts, feature_sums_size] by Knots::kAll, zeroed
/// here. Each part is summed by one block in a fixed order.
template <typename T>
void features_backward(const FeatureMap<T>& map, const FeatureRows& rows,
                       const Rows& grad_phi, const Rows& grad_x, T* partials,
                       int64_t parts, cudaStream_t stream);

constexpr int64_t sum_segments(const TableShape& shape, Knots knots) {
  return (knots == Knots::kAll ? shape.knots : shape.hidden) + 1;
}
/// Numbers of one part: per segment Σg and Σg u, then dW [M, width], db [M].
template <typename T>
constexpr int64_t feature_sums_size(const FeatureMap<T>& map,
                                    Knots knots = Knots::kAll) {
  return sum_segments(map.shape, knots) * 2 * map.shape.channels +
         map.projections * (map.width + 1);
}
/// Parts per head; depends on shapes alone.
int64_t feature_parts(const FeatureRows& rows);

/// Adds up partials [sets][heads, parts, size] in order, then turns the sums
/// per segment into the parameters' gradients (double).
template <typename T>
struct FeatureGradients {
  const T* partials;
  Knots knots;
  int64_t sets, heads, parts;
  double* sums;  ///< scratch [weight_heads, size]
  const T *hidden_weight, *hidden_bias, *output_weight;
  struct Output {  ///< contiguous, of any dtype
    void* data;
    Scalar type;
  };
  Output grad_weight, grad_bias;  ///< [weight_heads, ...]
  Output grad_hidden_weight, grad_hidden_bias, grad_output_weight,
      grad_output_bias;
};

template <typename T>
void feature_gradients(const FeatureMap<T>& map,
                       const FeatureGradients<T>& gradients,
                       cudaStream_t stream);

}  // namespace luna::cuda
