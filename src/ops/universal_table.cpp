#include <luna/ops/universal_table.h>

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/feature_parameters.h"
#include "ops/universal_table.h"

namespace luna::ops {

at::Tensor universal_table(const at::Tensor& hidden_weight,
                           const at::Tensor& hidden_bias,
                           const at::Tensor& output_weight,
                           const at::Tensor& output_bias) {
  static auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("luna::universal_table", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&,
                            const at::Tensor&, const at::Tensor&)>();
  return op.call(hidden_weight, hidden_bias, output_weight, output_bias);
}

namespace {

at::Tensor universal_table_meta(const at::Tensor& hidden_weight,
                                const at::Tensor& hidden_bias,
                                const at::Tensor& output_weight,
                                const at::Tensor& output_bias) {
  check_psi("universal_table", hidden_weight, hidden_bias, output_weight,
            output_bias);
  const auto dtype =
      output_bias.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::empty({table_layout(hidden_weight, output_weight).size()},
                   output_bias.options().dtype(dtype));
}

// A cache, not a function of the parameters to autograd.
at::Tensor universal_table_autograd(const at::Tensor& hidden_weight,
                                    const at::Tensor& hidden_bias,
                                    const at::Tensor& output_weight,
                                    const at::Tensor& output_bias) {
  at::AutoDispatchBelowADInplaceOrView below;
  return universal_table(hidden_weight, hidden_bias, output_weight,
                         output_bias);
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def(
      "universal_table(Tensor hidden_weight, Tensor hidden_bias, "
      "Tensor output_weight, Tensor output_bias) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("universal_table", universal_table_meta);
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("universal_table", universal_table_autograd);
}

}  // namespace
}  // namespace luna::ops
