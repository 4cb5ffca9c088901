// Builds the table of ops/universal_table.h: sort the knots, walk along them
// from -inf to +inf and keep each channel's slope and intercept up to date.

#include <ATen/ATen.h>
#include <luna/ops/universal_table.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/cpu/simd/psi.h"
#include "ops/feature_parameters.h"

namespace luna::cpu {
namespace {

template <typename T>
class TableBuilder {
  // Sums run along thousands of knots: more digits than the result has.
  using Sum =
      std::conditional_t<std::is_same_v<T, double>, long double, double>;
  using Index = typename PsiTable<T>::Index;

 public:
  TableBuilder(const at::Tensor& hidden_weight, const at::Tensor& hidden_bias,
               const at::Tensor& output_weight, const at::Tensor& output_bias)
      : layout_(ops::table_layout(hidden_weight, output_weight)),
        w_(hidden_weight.const_data_ptr<T>()),
        b_(hidden_bias.const_data_ptr<T>()),
        o_(output_weight.const_data_ptr<T>()),
        c_(output_bias.const_data_ptr<T>()),
        boundary_(layout_.knots()),
        order_(layout_.knots()) {}

  void build(T* table) {
    for (int64_t i = 0; i < layout_.knots(); ++i) boundary_[i] = boundary(i);
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int64_t i, int64_t j) {
      return boundary_[i] < boundary_[j] ||
             (boundary_[i] == boundary_[j] && i < j);
    });
    T* sorted = table + layout_.boundary_at();
    auto* rank = reinterpret_cast<Index*>(table + layout_.rank_at());
    for (int64_t r = 0; r < layout_.knots(); ++r) {
      sorted[r] = boundary_[order_[r]];
      rank[order_[r]] = static_cast<Index>(r);
    }
    std::fill_n(sorted + layout_.knots(), layout_.kProbe,
                std::numeric_limits<T>::infinity());
    fill_cells(table, sorted);
    std::fill(table + layout_.rank_at() + layout_.knots(),
              table + layout_.rows_at(), T(0));
    fill_rows(table + layout_.rows_at());
  }

 private:
  // The largest number that is not to the right of unit i's knot.
  T boundary(int64_t i) const {
    constexpr T kInf = std::numeric_limits<T>::infinity();
    if (w_[i] == 0) return b_[i] > 0 ? -kInf : kInf;
    const Sum knot = -Sum(b_[i]) / Sum(w_[i]);
    T near = static_cast<T>(knot);
    if (w_[i] > 0) {  // active for u > knot: round down
      if (Sum(near) > knot) near = std::nextafter(near, -kInf);
      return near;
    }
    if (Sum(near) < knot) near = std::nextafter(near, kInf);
    return std::nextafter(near, -kInf);  // active for u < knot
  }

  void fill_cells(T* table, const T* sorted) const {
    const int64_t knots = layout_.knots(), cells = layout_.cells();
    const auto first = std::find_if(sorted, sorted + knots,
                                    [](T x) { return std::isfinite(x); });
    const auto last = std::find_if(first, sorted + knots,
                                   [](T x) { return !std::isfinite(x); });
    T low = 0, scale = 0;
    if (const int64_t finite = last - first; finite > 0) {
      // 5 % of the knots on each side are left to the end cells.
      low = first[finite / 20];
      const T high = first[finite - 1 - finite / 20];
      const T width = high - low;
      scale = width > 0 ? static_cast<T>(cells) / width : T(0);
      if (!std::isfinite(scale)) scale = 0;
    }
    table[0] = low;
    table[1] = scale;
    auto* begin = reinterpret_cast<Index*>(table + layout_.cell_begin_at());
    const T top = static_cast<T>(cells - 1);
    int64_t cell = 0;
    for (int64_t r = 0; r < knots; ++r) {
      // The same arithmetic as the look-up's, so that both agree.
      const T at = (sorted[r] - low) * scale;
      const T clamped = at > T(0) ? (at < top ? at : top) : T(0);
      for (const auto own = static_cast<int64_t>(clamped); cell <= own;
           ++cell) {
        begin[cell] = static_cast<Index>(r);
      }
    }
    for (; cell <= cells; ++cell) begin[cell] = static_cast<Index>(knots);
  }

  void fill_rows(T* rows) const {
    const int64_t channels = layout_.channels, hidden = layout_.hidden;
    std::vector<Sum> line(2 * channels, 0);
    const auto add_unit = [&](int64_t unit, Sum sign) {
      const int64_t j = unit % hidden;
      const bool shared = layout_.trunks == 1;
      const int64_t from = shared ? 0 : unit / hidden;
      const int64_t to = shared ? channels : from + 1;
      for (int64_t c = from; c < to; ++c) {
        const Sum o = sign * Sum(o_[c * hidden + j]);
        line[c] += o * Sum(w_[unit]);
        line[channels + c] += o * Sum(b_[unit]);
      }
    };
    for (int64_t c = 0; c < channels; ++c) line[channels + c] = c_[c];
    for (int64_t unit = 0; unit < layout_.knots(); ++unit) {
      if (w_[unit] < 0) add_unit(unit, 1);
    }
    const int64_t size = layout_.row_size();
    for (int64_t s = 0; s < layout_.segments(); ++s) {
      for (int64_t j = 0; j < size; ++j) {
        rows[s * size + j] = static_cast<T>(line[j]);
      }
      if (s == layout_.knots()) break;
      const int64_t unit = order_[s];
      if (w_[unit] < 0) {
        add_unit(unit, -1);
      } else if (w_[unit] > 0 || b_[unit] > 0) {
        add_unit(unit, 1);
      }
    }
  }

  ops::UniversalTableLayout layout_;
  const T *w_, *b_, *o_, *c_;
  std::vector<T> boundary_;
  std::vector<int64_t> order_;
};

at::Tensor universal_table_cpu(const at::Tensor& hidden_weight,
                               const at::Tensor& hidden_bias,
                               const at::Tensor& output_weight,
                               const at::Tensor& output_bias) {
  ops::check_psi("universal_table", hidden_weight, hidden_bias, output_weight,
                 output_bias);
  const auto dtype =
      output_bias.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto prepared = [&](const at::Tensor& x) {
    return x.to(dtype).contiguous();
  };
  const at::Tensor w = prepared(hidden_weight), b = prepared(hidden_bias),
                   o = prepared(output_weight), c = prepared(output_bias);
  at::Tensor table = at::empty({ops::table_layout(w, o).size()}, c.options());
  if (dtype == at::kDouble) {
    TableBuilder<double>(w, b, o, c).build(table.mutable_data_ptr<double>());
  } else {
    TableBuilder<float>(w, b, o, c).build(table.mutable_data_ptr<float>());
  }
  return table;
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("universal_table", universal_table_cpu);
}

}  // namespace
}  // namespace luna::cpu
