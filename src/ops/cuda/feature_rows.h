#pragma once

#include <luna/ops/feature_map.h>

#include <vector>

#include "ops/cuda/features.h"
#include "ops/cuda/tensors.h"
#include "ops/feature_parameters.h"

// The feature map's kernels over tensors.

namespace luna::cuda {

template <typename T>
class Features {
 public:
  Features(const ops::FeatureMapParameters& parameters, const at::Tensor& table,
           bool nonneg);

  int64_t width() const { return map_.features(); }
  const FeatureMap<T>& map() const { return map_; }
  /// phi [B,H,n,F] of x [B,H,n,d], into `phi`.
  void forward(const at::Tensor& x, const at::Tensor& phi) const;
  /// Partial sums a head for x [B,H,n,d].
  int64_t parts(const at::Tensor& x) const;
  /// Between which knots they are.
  Knots knots() const;
  /// Room for `sets` sets of them: [sets, heads, parts, size].
  at::Tensor empty_partials(int64_t sets, int64_t heads, int64_t parts) const;
  /// The gradient of x from that of phi (contiguous), and one set.
  void backward(const at::Tensor& x, const at::Tensor& grad_phi,
                const at::Tensor& grad_x, const at::Tensor& partials) const;
  /// The six parameters' gradients: partials [sets, heads, parts, size].
  std::vector<at::Tensor> gradients(const at::Tensor& partials,
                                    Knots knots) const;

 private:
  const ops::FeatureMapParameters& parameters_;
  at::Tensor table_, weight_, bias_;
  FeatureMap<T> map_;
};

}  // namespace luna::cuda
