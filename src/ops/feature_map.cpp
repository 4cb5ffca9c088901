#include <luna/ops/feature_map.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/feature_parameters.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

using PublicSignature = Tensor(const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&, bool, const OptionalTensor&);
using BackwardSignature = std::vector<Tensor>(const Tensor&, const Tensor&,
                                              const Tensor&, const Tensor&,
                                              const Tensor&, const Tensor&,
                                              const Tensor&, const Tensor&,
                                              bool, const Tensor&);

class FeatureMapFunction
    : public torch::autograd::Function<FeatureMapFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const Tensor& projection, const Tensor& projection_bias,
                        const Tensor& hidden_weight, const Tensor& hidden_bias,
                        const Tensor& output_weight, const Tensor& output_bias,
                        bool nonneg, const OptionalTensor& table) {
    at::AutoDispatchBelowADInplaceOrView below;
    const FeatureMapParameters parameters{projection,    projection_bias,
                                          hidden_weight, hidden_bias,
                                          output_weight, output_bias};
    const Tensor built = table_or_built(x, parameters, table);
    ctx->save_for_backward({x, projection, projection_bias, hidden_weight,
                            hidden_bias, output_weight, output_bias, built});
    ctx->saved_data["nonneg"] = nonneg;
    return feature_map(x, parameters, {nonneg, built});
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    static const auto op =
        find_op<BackwardSignature>("luna::feature_map_backward");
    const auto s = ctx->get_saved_variables();
    auto result = op.call(grads[0], s[0], s[1], s[2], s[3], s[4], s[5], s[6],
                          ctx->saved_data["nonneg"].toBool(), s[7]);
    result.resize(9);  // nothing for nonneg and table
    return result;
  }
};

Tensor feature_map_autograd(const Tensor& x, const Tensor& projection,
                            const Tensor& projection_bias,
                            const Tensor& hidden_weight,
                            const Tensor& hidden_bias,
                            const Tensor& output_weight,
                            const Tensor& output_bias, bool nonneg,
                            const OptionalTensor& table) {
  if (any_needs_grad({x, projection, projection_bias, hidden_weight,
                      hidden_bias, output_weight, output_bias})) {
    return FeatureMapFunction::apply(x, projection, projection_bias,
                                     hidden_weight, hidden_bias, output_weight,
                                     output_bias, nonneg, table);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return feature_map(x,
                     {projection, projection_bias, hidden_weight, hidden_bias,
                      output_weight, output_bias},
                     {nonneg, table});
}

Tensor feature_map_meta(const Tensor& x, const Tensor& projection,
                        const Tensor& projection_bias,
                        const Tensor& hidden_weight, const Tensor& hidden_bias,
                        const Tensor& output_weight, const Tensor& output_bias,
                        bool, const OptionalTensor& table) {
  const FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                               hidden_bias, output_weight,   output_bias};
  check_feature_input("feature_map", x);
  check_feature_parameters("feature_map", "x", x, -3, p, table);
  auto sizes = x.sym_sizes().vec();
  sizes.back() = feature_count(p);
  return at::empty_symint(sizes, x.options());
}

std::vector<Tensor> backward_meta(
    const Tensor&, const Tensor& x, const Tensor& projection,
    const Tensor& projection_bias, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& output_weight,
    const Tensor& output_bias, bool, const Tensor&) {
  std::vector<Tensor> result;
  for (const Tensor& t : {x, projection, projection_bias, hidden_weight,
                          hidden_bias, output_weight, output_bias}) {
    result.push_back(at::empty_symint(t.sym_sizes(), t.options()));
  }
  return result;
}

std::vector<Tensor> backward_autograd(
    const Tensor& grad, const Tensor& x, const Tensor& projection,
    const Tensor& projection_bias, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& output_weight,
    const Tensor& output_bias, bool nonneg, const Tensor& table) {
  refuse_double_backward("feature_map",
                         {grad, x, projection, projection_bias, hidden_weight,
                          hidden_bias, output_weight, output_bias});
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto op =
      find_op<BackwardSignature>("luna::feature_map_backward");
  return op.call(grad, x, projection, projection_bias, hidden_weight,
                 hidden_bias, output_weight, output_bias, nonneg, table);
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "feature_map(Tensor x, Tensor projection, Tensor projection_bias, "
      "Tensor hidden_weight, Tensor hidden_bias, Tensor output_weight, "
      "Tensor output_bias, *, bool nonneg=True, Tensor? table=None) -> Tensor",
      tags);
  m.def(
      "feature_map_backward(Tensor grad, Tensor x, Tensor projection, "
      "Tensor projection_bias, Tensor hidden_weight, Tensor hidden_bias, "
      "Tensor output_weight, Tensor output_bias, bool nonneg, Tensor table) "
      "-> Tensor[]",
      tags);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("feature_map", feature_map_meta);
  m.impl("feature_map_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("feature_map", feature_map_autograd);
  m.impl("feature_map_backward", backward_autograd);
}

}  // namespace

Tensor feature_map(const Tensor& x, const FeatureMapParameters& p,
                   const FeatureMapOptions& options) {
  static const auto op = find_op<PublicSignature>("luna::feature_map");
  return op.call(x, p.projection, p.projection_bias, p.hidden_weight,
                 p.hidden_bias, p.output_weight, p.output_bias, options.nonneg,
                 options.table);
}

}  // namespace luna::ops
