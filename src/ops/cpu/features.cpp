#include "ops/cpu/features.h"

namespace luna::cpu {
namespace {

template <typename T>
constexpr at::ScalarType dtype_for =
    std::is_same_v<T, double> ? at::kDouble : at::kFloat;

template <typename T>
at::Tensor in_t(const at::Tensor& x) {
  if (x.scalar_type() == dtype_for<T> && x.is_contiguous()) return x;
  return x.detach().to(dtype_for<T>).contiguous();
}

}  // namespace

template <typename T>
PreparedParameters<T>::PreparedParameters(const ops::FeatureMapParameters& p,
                                          const at::Tensor& table, bool nonneg)
    : table_(table.contiguous()),
      weight_(in_t<T>(p.projection)),
      layout_(ops::table_layout(p.hidden_weight, p.output_weight)),
      psi_(table_.const_data_ptr<T>(), layout_),
      nonneg_(nonneg),
      per_head_(p.projection.dim() == 3),
      heads_(per_head_ ? p.projection.size(0) : 1),
      projections_(p.projection.size(-2)),
      width_(p.projection.size(-1)) {
  const auto& kernels = tile_kernels<T>();
  padded_ = (projections_ + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
  factor_ = T(1) / std::sqrt(static_cast<T>(projections_));
  const at::Tensor bias = in_t<T>(p.projection_bias);
  transposed_.assign(heads_ * width_ * padded_, T(0));
  bias_.assign(heads_ * padded_, T(0));
  for (int64_t h = 0; h < heads_; ++h) {
    kernels.transpose(projections_, width_, weight(h), width_,
                      transposed_.data() + h * width_ * padded_, padded_);
    std::copy_n(bias.const_data_ptr<T>() + h * projections_, projections_,
                bias_.data() + h * padded_);
  }
}

template <typename T>
ParameterSums<T>::ParameterSums(const PreparedParameters<T>& p)
    : per_head_(p.per_head()),
      segment_numbers_(p.layout().segments() * p.layout().row_size()),
      projections_(p.projections()),
      width_(p.width()),
      recent_(segment_numbers_ + p.heads() * projections_ * (width_ + 1), T(0)),
      total_(recent_.size(), 0.0) {}

template <typename T>
void ParameterSums<T>::flush() {
  for (size_t i = 0; i < recent_.size(); ++i) {
    total_[i] += static_cast<double>(recent_[i]);
    recent_[i] = T(0);
  }
  tokens_ = 0;
}

template <typename T>
std::vector<at::Tensor> ParameterSums<T>::gradients(
    std::vector<ParameterSums> parts, const PreparedParameters<T>& prepared,
    const ops::FeatureMapParameters& parameters) {
  ParameterSums& sum = parts.front();
  for (ParameterSums& part : parts) {
    part.flush();
    if (&part == &sum) continue;
    for (size_t i = 0; i < sum.total_.size(); ++i) {
      sum.total_[i] += part.total_[i];
    }
  }
  return sum.from_total(prepared, parameters);
}

template <typename T>
std::vector<at::Tensor> ParameterSums<T>::from_total(
    const PreparedParameters<T>& prepared,
    const ops::FeatureMapParameters& p) const {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor weight = at::empty(p.projection.sizes(), options);
  const at::Tensor bias = at::empty(p.projection_bias.sizes(), options);
  const int64_t per_head = projections_ * width_;
  for (int64_t h = 0; h < prepared.heads(); ++h) {
    const double* from = total_.data() + weight_at(h);
    std::copy_n(from, per_head,
                weight.mutable_data_ptr<double>() + h * per_head);
    std::copy_n(from + per_head, projections_,
                bias.mutable_data_ptr<double>() + h * projections_);
  }

  // From sums per segment to sums over {u > boundary r}: suffix sums, and over
  // the other side by the difference to the whole.
  const auto& layout = prepared.layout();
  const int64_t row = layout.row_size(), channels = layout.channels;
  std::vector<double> suffix(total_.begin(), total_.begin() + segment_numbers_);
  for (int64_t s = layout.segments() - 2; s >= 0; --s) {
    for (int64_t j = 0; j < row; ++j) {
      suffix[s * row + j] += suffix[(s + 1) * row + j];
    }
  }
  // Prefix sums of their own: a difference would lose digits.
  std::vector<double> prefix(total_.begin(), total_.begin() + segment_numbers_);
  for (int64_t s = 1; s < layout.segments(); ++s) {
    for (int64_t j = 0; j < row; ++j) {
      prefix[s * row + j] += prefix[(s - 1) * row + j];
    }
  }
  const at::Tensor w = p.hidden_weight.to(at::kDouble).contiguous();
  const at::Tensor b = p.hidden_bias.to(at::kDouble).contiguous();
  const at::Tensor o = p.output_weight.to(at::kDouble).contiguous();
  const at::Tensor dw = at::zeros_like(w), db = at::zeros_like(b);
  const at::Tensor d_out = at::zeros_like(o);
  const at::Tensor d_out_bias = at::empty({channels}, options);
  const double *wp = w.const_data_ptr<double>(),
               *bp = b.const_data_ptr<double>(),
               *op = o.const_data_ptr<double>();
  double *dwp = dw.mutable_data_ptr<double>(),
         *dbp = db.mutable_data_ptr<double>(),
         *dop = d_out.mutable_data_ptr<double>();
  for (int64_t c = 0; c < channels; ++c) {
    d_out_bias.mutable_data_ptr<double>()[c] = suffix[c];
    for (int64_t j = 0; j < layout.hidden; ++j) {
      const int64_t unit = (layout.trunks == 1 ? 0 : c * layout.hidden) + j;
      const int64_t r = static_cast<int64_t>(prepared.psi().rank[unit]);
      // Active where u > t (weight >= 0; a zero weight's t is -inf or inf),
      // or where u < t.
      const double* active =
          wp[unit] < 0 ? &prefix[r * row] : &suffix[(r + 1) * row];
      const double g = active[c], gu = active[channels + c];
      const double out = op[c * layout.hidden + j];
      dop[c * layout.hidden + j] = wp[unit] * gu + bp[unit] * g;
      dwp[unit] += out * gu;
      dbp[unit] += out * g;
    }
  }
  return {weight.to(p.projection.scalar_type()),
          bias.to(p.projection_bias.scalar_type()),
          dw.to(p.hidden_weight.scalar_type()),
          db.to(p.hidden_bias.scalar_type()),
          d_out.to(p.output_weight.scalar_type()),
          d_out_bias.to(p.output_bias.scalar_type())};
}

template <typename T>
UniversalFeatures<T>::Scratch::Scratch(const UniversalFeatures& features,
                                       int64_t tokens) {
  const auto& p = features.parameters_;
  const int64_t rows = tokens * p.width(), projected = tokens * p.padded(),
                mapped = tokens * features.width();
  numbers_ =
      std::make_unique_for_overwrite<T[]>(2 * rows + 2 * projected + mapped);
  segment_ =
      std::make_unique_for_overwrite<int32_t[]>(tokens * p.projections());
  x_ = numbers_.get();
  dx_ = x_ + rows;
  u_ = dx_ + rows;
  du_ = u_ + projected;
  phi_ = du_ + projected;
}

template <typename T>
Tile<T> UniversalFeatures<T>::forward(int64_t batch, int64_t head,
                                      int64_t first, int64_t count,
                                      Scratch& scratch) const {
  const auto& p = parameters_;
  const int64_t padded = p.padded();
  scratch.input_ = rows_.read(batch, head, first, count, scratch.x_);
  rows_.prefetch(batch, head, first + count, count);
  T* u = scratch.u_;
  for (int64_t t = 0; t < count; ++t) {
    std::copy_n(p.bias(head), padded, u + t * padded);
  }
  tile_kernels<T>().gemm(count, padded, p.width(), scratch.input_.data,
                         scratch.input_.stride, 1, p.transposed(head), padded,
                         u, padded, true);
  const auto& psi = psi_kernels<T>();
  psi.find(p.psi(), count, p.projections(), u, padded, scratch.segment_.get());
  psi.values(p.psi(), count, p.projections(), u, padded, scratch.segment_.get(),
             p.factor(), p.nonneg(), scratch.phi_, width());
  return {scratch.phi_, width()};
}

template <typename T>
void UniversalFeatures<T>::backward(int64_t batch, int64_t head, int64_t first,
                                    int64_t count, Scratch& scratch,
                                    const T* grad, int64_t stride,
                                    Sink& sink) const {
  const auto& p = parameters_;
  const auto& kernels = tile_kernels<T>();
  const int64_t padded = p.padded(), m = p.projections(), d = p.width();
  T* du = scratch.du_;
  psi_kernels<T>().backward(
      p.psi(), count, m, scratch.u_, padded, scratch.segment_.get(), p.factor(),
      p.nonneg(), scratch.phi_, width(), grad, stride, du, sink.segments());
  if (T* place = grad_.in_place(batch, head, first)) {
    kernels.gemm(count, d, m, du, padded, 1, p.weight(head), d, place,
                 grad_.row_stride(), false);
  } else {
    kernels.gemm(count, d, m, du, padded, 1, p.weight(head), d, scratch.dx_, d,
                 false);
    grad_.write(batch, head, first, count, scratch.dx_, d);
  }
  kernels.gemm(m, d, count, du, 1, padded, scratch.input_.data,
               scratch.input_.stride, sink.weight(head), d, true);
  kernels.add_rows(count, m, du, padded, nullptr, sink.bias(head));
  sink.count(count);
}

#define LUNA_INSTANTIATE(T)             \
  template class PreparedParameters<T>; \
  template class ParameterSums<T>;      \
  template class UniversalFeatures<T>;
LUNA_INSTANTIATE(float)
LUNA_INSTANTIATE(double)
#undef LUNA_INSTANTIATE

}  // namespace luna::cpu
