#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace luna::distill {

/// Queries and keys of a teacher's heads, and the features that a student
/// makes of the same tokens.
struct Rows {
  at::Tensor query{}, key{};          ///< [B,H,n,d], without a gradient
  at::Tensor query_map{}, key_map{};  ///< phi(q), phi(k): [B,H,n,F]
  std::optional<at::Tensor> mask{};   ///< [B,n] bool, true = real
  int64_t block = 512;                ///< rows that are in memory at a time
  /// f > 0: the gradient is that of log(share + f), so that shares below
  /// kLeastShare have one too; the loss stays what it is.
  double gradient_floor = 0.0;
};

/// Below it a student's share counts as this, and has no gradient (unless
/// Rows::gradient_floor gives it one).
constexpr double kLeastShare = 1e-9;

/// Stage 1's loss: the cross-entropy of the teacher's rows, softmax(q k^T /
/// sqrt d), against the student's, phi(q) phi(k)^T divided by its sum, over
/// real keys; the mean over real rows and heads. Differentiable in the two
/// maps. No row outlives its block.
at::Tensor row_cross_entropy(const Rows& rows);

/// The same loss less the entropy of the teacher's rows, the least it could
/// be, for each head: [H].
at::Tensor row_divergence(const Rows& rows);

}  // namespace luna::distill
