#include "ops/cuda/feature_rows.h"

#include <cmath>

#include "ops/cuda/feature_tiles.h"

namespace luna::cuda {
namespace {

using at::Tensor;

template <typename T>
constexpr at::ScalarType dtype_for =
    std::is_same_v<T, double> ? at::kDouble : at::kFloat;

template <typename T>
Tensor in_t(const Tensor& x) {
  return x.detach().to(dtype_for<T>).contiguous();
}

FeatureRows feature_rows(const Tensor& x) {
  return {rows_of(x), x.size(0), x.size(1), x.size(2)};
}

}  // namespace

template <typename T>
Features<T>::Features(const ops::FeatureMapParameters& p, const Tensor& table,
                      bool nonneg)
    : parameters_(p),
      table_(table.contiguous()),
      weight_(in_t<T>(p.projection)),
      bias_(in_t<T>(p.projection_bias)),
      map_{TableShape(ops::table_layout(p.hidden_weight, p.output_weight)),
           table_.const_data_ptr<T>(),
           weight_.const_data_ptr<T>(),
           bias_.const_data_ptr<T>(),
           p.projection.dim() == 3,
           nonneg,
           p.projection.size(-2),
           p.projection.size(-1),
           T(1) / std::sqrt(static_cast<T>(p.projection.size(-2)))} {}

template <typename T>
void Features<T>::forward(const Tensor& x, const Tensor& phi) const {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  if constexpr (std::is_same_v<T, float>) {
    if (FeatureTiles tiles; cut_feature_tiles(map_, false, tiles)) {
      feature_tiles_forward(map_, feature_rows(x), rows_of(phi), stream);
      return;
    }
  }
  features_forward(map_, feature_rows(x), rows_of(phi), stream);
}

template <typename T>
int64_t Features<T>::parts(const Tensor& x) const {
  if constexpr (std::is_same_v<T, float>) {
    if (FeatureTiles tiles; cut_feature_tiles(map_, true, tiles)) {
      return feature_tile_parts(feature_rows(x), tiles);
    }
  }
  return feature_parts(feature_rows(x));
}

template <typename T>
Knots Features<T>::knots() const {
  if constexpr (std::is_same_v<T, float>) {
    if (FeatureTiles tiles; cut_feature_tiles(map_, true, tiles)) {
      return Knots::kOwn;
    }
  }
  return Knots::kAll;
}

template <typename T>
Tensor Features<T>::empty_partials(int64_t sets, int64_t heads,
                                   int64_t parts) const {
  return at::empty({sets, heads, parts, feature_sums_size(map_, knots())},
                   bias_.options());
}

template <typename T>
void Features<T>::backward(const Tensor& x, const Tensor& grad_phi,
                           const Tensor& grad_x, const Tensor& partials) const {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t parts = partials.size(1);
  T* sums = partials.template data_ptr<T>();
  if constexpr (std::is_same_v<T, float>) {
    if (FeatureTiles tiles; cut_feature_tiles(map_, true, tiles)) {
      const Tensor scratch =
          at::empty({feature_tiles_scratch(map_.shape)}, bias_.options());
      feature_tiles_backward(map_, feature_rows(x), rows_of(grad_phi),
                             rows_of(grad_x), sums, parts,
                             scratch.data_ptr<float>(), stream);
      return;
    }
  }
  features_backward(map_, feature_rows(x), rows_of(grad_phi), rows_of(grad_x),
                    sums, parts, stream);
}

template <typename T>
std::vector<Tensor> Features<T>::gradients(const Tensor& partials,
                                           Knots knots) const {
  const auto& p = parameters_;
  const int64_t heads = partials.size(1);
  const auto options = bias_.options().dtype(at::kDouble);
  const Tensor w = in_t<T>(p.hidden_weight), b = in_t<T>(p.hidden_bias),
               o = in_t<T>(p.output_weight);
  const Tensor sums =
      at::empty({std::max<int64_t>(1, map_.per_head ? heads : 1),
                 feature_sums_size(map_, knots)},
                options);
  if (heads == 0) sums.zero_();
  std::vector<Tensor> results;
  for (const Tensor& x : {p.projection, p.projection_bias, p.hidden_weight,
                          p.hidden_bias, p.output_weight, p.output_bias}) {
    results.push_back(at::empty(x.sizes(), x.options()));
  }
  const auto at = [&](int i) {
    return typename FeatureGradients<T>::Output{results[i].data_ptr(),
                                                scalar_of(results[i])};
  };
  feature_gradients<T>(
      map_,
      {partials.const_data_ptr<T>(), knots, partials.size(0), heads,
       partials.size(2), sums.data_ptr<double>(), w.const_data_ptr<T>(),
       b.const_data_ptr<T>(), o.const_data_ptr<T>(), at(0), at(1), at(2), at(3),
       at(4), at(5)},
      c10::cuda::getCurrentCUDAStream());
  return results;
}

template class Features<float>;
template class Features<double>;

}  // namespace luna::cuda
