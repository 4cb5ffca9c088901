#include "ops/cuda/feature_rows.h"

#include <cmath>

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
  features_forward(map_, {rows_of(x), x.size(0), x.size(1), x.size(2)},
                   rows_of(phi), c10::cuda::getCurrentCUDAStream());
}

template <typename T>
Tensor Features<T>::backward(const Tensor& x, const Tensor& grad_phi,
                             const Tensor& grad_x, int64_t parts) const {
  Tensor partials =
      at::empty({x.size(1), parts, feature_sums_size(map_)}, bias_.options());
  features_backward(map_, {rows_of(x), x.size(0), x.size(1), x.size(2)},
                    rows_of(grad_phi), rows_of(grad_x),
                    partials.template data_ptr<T>(), parts,
                    c10::cuda::getCurrentCUDAStream());
  return partials;
}

template <typename T>
std::vector<Tensor> Features<T>::gradients(const std::vector<Tensor>& sets,
                                           int64_t heads,
                                           int64_t parts) const {
  const auto& p = parameters_;
  const Tensor partials = sets.size() == 1 ? sets[0] : at::cat(sets, 0);
  const auto options = bias_.options().dtype(at::kDouble);
  const Tensor w = in_t<T>(p.hidden_weight), b = in_t<T>(p.hidden_bias),
               o = in_t<T>(p.output_weight);
  const int64_t segments = map_.shape.knots + 1;
  const Tensor sums = at::zeros(
      {std::max<int64_t>(1, map_.per_head ? heads : 1),
       feature_sums_size(map_)},
      options);
  const Tensor scans =
      at::empty({2, segments, 2 * map_.shape.channels}, options);
  std::vector<Tensor> results;
  for (const Tensor& x :
       {p.projection, p.projection_bias, p.hidden_weight, p.hidden_bias,
        p.output_weight, p.output_bias}) {
    results.push_back(at::empty(x.sizes(), options));
  }
  const auto at = [&](int i) { return results[i].data_ptr<double>(); };
  feature_gradients<T>(
      map_,
      {partials.const_data_ptr<T>(), static_cast<int64_t>(sets.size()), heads,
       parts, sums.data_ptr<double>(), scans.data_ptr<double>(),
       scans.data_ptr<double>() + scans.stride(0), w.const_data_ptr<T>(),
       b.const_data_ptr<T>(), o.const_data_ptr<T>(), at(0), at(1), at(2), at(3),
       at(4), at(5)},
      c10::cuda::getCurrentCUDAStream());
  results[0] = results[0].to(p.projection.scalar_type());
  results[1] = results[1].to(p.projection_bias.scalar_type());
  results[2] = results[2].to(p.hidden_weight.scalar_type());
  results[3] = results[3].to(p.hidden_bias.scalar_type());
  results[4] = results[4].to(p.output_weight.scalar_type());
  results[5] = results[5].to(p.output_bias.scalar_type());
  return results;
}

template class Features<float>;
template class Features<double>;

}  // namespace luna::cuda
