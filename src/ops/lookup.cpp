#include "ops/lookup.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/autograd.h"
#include "ops/fixed_order.h"

namespace luna::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNoPadding = -1;

class Lookup : public torch::autograd::Function<Lookup> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table,
                            const at::Tensor& ids) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({ids});
    ctx->saved_data["rows"] = table.size(0);
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const FixedOrder fixed;
    return {at::embedding_dense_backward(
                grads[0], ctx->get_saved_variables()[0],
                ctx->saved_data["rows"].toInt(), kNoPadding,
                /*scale_grad_by_freq=*/false),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids) {
  if (!table.is_cuda() || !any_needs_grad({table})) {
    return at::embedding(table, ids);
  }
  return Lookup::apply(table, ids);
}

}  // namespace luna::ops
