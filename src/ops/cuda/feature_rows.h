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
  /// The gradient of x from that of phi, and a set of partial sums.
  at::Tensor backward(const at::Tensor& x, const at::Tensor& grad_phi,
                      const at::Tensor& grad_x, int64_t parts) const;
  /// The six parameters' gradients: partials [sets, heads, parts, size].
  std::vector<at::Tensor> gradients(const at::Tensor& partials) const;

 private:
  const ops::FeatureMapParameters& parameters_;
  at::Tensor table_, weight_, bias_;
  FeatureMap<T> map_;
};

/// Parts per head for x [B,H,n,d].
inline int64_t parts_for(const at::Tensor& x) {
  return feature_parts({{}, x.size(0), x.size(1), x.size(2)});
}

}  // namespace luna::cuda
