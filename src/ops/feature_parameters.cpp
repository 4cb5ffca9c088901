#include "ops/feature_parameters.h"

#include <ATen/ATen.h>
#include <luna/ops/universal_table.h>

#include "ops/checks.h"

namespace luna::ops {
namespace {

void check_parameter(std::string_view op, std::string_view name,
                     const at::Tensor& parameter, std::string_view x_name,
                     const at::Tensor& x) {
  TORCH_CHECK_TYPE(parameter.scalar_type() == at::kFloat ||
                       parameter.scalar_type() == x.scalar_type(),
                   op, ": expected ", name, " of dtype float32 or ", x_name,
                   "'s (", x.scalar_type(), "), got ", parameter.scalar_type());
  check_same_device(op, name, parameter, x_name, x);
}

}  // namespace

void check_psi(std::string_view op, const at::Tensor& hidden_weight,
               const at::Tensor& hidden_bias, const at::Tensor& output_weight,
               const at::Tensor& output_bias) {
  TORCH_CHECK_VALUE(output_weight.dim() == 2, op,
                    ": expected output_weight of shape [channels, hidden], "
                    "got ",
                    output_weight.sym_sizes());
  const auto channels = output_weight.sym_size(0);
  const auto hidden = output_weight.sym_size(1);
  TORCH_CHECK_VALUE(channels > 0 && hidden > 0, op,
                    ": expected at least one channel and one hidden unit, got "
                    "output_weight ",
                    output_weight.sym_sizes());
  TORCH_CHECK_VALUE(
      output_bias.dim() == 1 && output_bias.sym_size(0) == channels, op,
      ": expected output_bias of shape [", channels, "], got ",
      output_bias.sym_sizes());
  const auto check_trunk = [&](std::string_view name, const at::Tensor& x) {
    TORCH_CHECK_VALUE(x.dim() == 2 && x.sym_size(1) == hidden &&
                          (x.sym_size(0) == channels || x.sym_size(0) == 1),
                      op, ": expected ", name, " of shape [", channels, ", ",
                      hidden, "] or [1, ", hidden, "], got ", x.sym_sizes());
  };
  check_trunk("hidden_weight", hidden_weight);
  check_trunk("hidden_bias", hidden_bias);
  check_size(op, "hidden_bias", hidden_bias, 0, hidden_weight.sym_size(0),
             "hidden_weight's");
  const auto check_kind = [&](std::string_view name, const at::Tensor& x) {
    TORCH_CHECK_TYPE(at::isFloatingType(x.scalar_type()), op, ": expected ",
                     name, " of a floating dtype, got ", x.scalar_type());
    check_same_kind(op, name, x, "output_bias", output_bias);
  };
  check_kind("output_bias", output_bias);
  check_kind("hidden_weight", hidden_weight);
  check_kind("hidden_bias", hidden_bias);
  check_kind("output_weight", output_weight);
}

void check_feature_parameters(std::string_view op, std::string_view x_name,
                              const at::Tensor& x, int64_t head_dim,
                              const FeatureMapParameters& p,
                              const std::optional<at::Tensor>& table) {
  check_psi(op, p.hidden_weight, p.hidden_bias, p.output_weight, p.output_bias);
  const bool per_head = p.projection.dim() == 3;
  TORCH_CHECK_VALUE(per_head || p.projection.dim() == 2, op,
                    ": expected projection of shape [M, width] or [heads, M, "
                    "width], got ",
                    p.projection.sym_sizes());
  check_size(op, "projection", p.projection, p.projection.dim() - 1,
             x.sym_size(-1), "the input's width");
  if (per_head) {
    TORCH_CHECK_VALUE(x.dim() >= -head_dim, op,
                      ": expected an input [batch, heads, length, width] with "
                      "a projection per head, got ",
                      x.sym_sizes());
    check_size(op, "projection", p.projection, 0, x.sym_size(head_dim),
               "the input's heads");
  }
  TORCH_CHECK_VALUE(p.projection.sym_size(-2) > 0, op,
                    ": expected at least one projection, got ",
                    p.projection.sym_sizes());
  TORCH_CHECK_VALUE(
      p.projection_bias.sym_sizes() ==
          p.projection.sym_sizes().slice(0, p.projection.dim() - 1),
      op, ": expected projection_bias of shape ",
      p.projection.sym_sizes().slice(0, p.projection.dim() - 1), ", got ",
      p.projection_bias.sym_sizes());
  check_parameter(op, "projection", p.projection, x_name, x);
  check_parameter(op, "projection_bias", p.projection_bias, x_name, x);
  check_parameter(op, "output_bias", p.output_bias, x_name, x);
  if (table.has_value()) {
    const int64_t size = table_layout(p.hidden_weight, p.output_weight).size();
    TORCH_CHECK_VALUE(table->dim() == 1 && table->sym_size(0) == size, op,
                      ": expected table = universal_table(...) of these "
                      "parameters, of ",
                      size, " numbers, got shape ", table->sym_sizes());
    TORCH_CHECK_TYPE(table->scalar_type() == compute_dtype(x), op,
                     ": expected table of dtype ", compute_dtype(x),
                     " (that of the sums), got ", table->scalar_type());
    check_same_device(op, "table", *table, x_name, x);
  }
}

void check_feature_input(std::string_view op, const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() >= 1, op,
                    ": expected x of shape [..., width], got a scalar");
  TORCH_CHECK_TYPE(
      x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble ||
          x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf,
      op,
      ": expected x of dtype float32, float64, bfloat16 or "
      "float16, got ",
      x.scalar_type());
  TORCH_CHECK_VALUE(x.sym_stride(-1) == 1 || x.sym_size(-1) <= 1, op,
                    ": expected x with unit last stride (call contiguous()), "
                    "got strides ",
                    x.sym_strides());
}

at::Tensor table_or_built(const at::Tensor& x, const FeatureMapParameters& p,
                          const std::optional<at::Tensor>& table) {
  if (table.has_value()) return *table;
  const auto dtype = compute_dtype(x);
  // A cast that changes nothing returns its input, which an op below autograd
  // must not do: opcheck objects.
  const auto cast = [&](const at::Tensor& t) {
    return t.scalar_type() == dtype ? t : t.to(dtype);
  };
  return universal_table(cast(p.hidden_weight), cast(p.hidden_bias),
                         cast(p.output_weight), cast(p.output_bias));
}

UniversalTableLayout table_layout(const at::Tensor& hidden_weight,
                                  const at::Tensor& output_weight) {
  return {hidden_weight.size(0), output_weight.size(1), output_weight.size(0)};
}

c10::SymInt feature_count(const FeatureMapParameters& p) {
  return p.projection.sym_size(-2) * p.output_weight.sym_size(0);
}

}  // namespace luna::ops
