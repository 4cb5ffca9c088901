#include "ops/take_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/autograd.h"

namespace luna::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class TakeRows : public torch::autograd::Function<TakeRows> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& from, const at::Tensor& to) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({to});
    return x.index_select(0, from);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor to = ctx->get_saved_variables()[0];
    return {grads[0]
                .index_select(0, to.clamp_min(0))
                .masked_fill(to.lt(0).unsqueeze(1), 0),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor take_rows(const at::Tensor& x, const at::Tensor& from,
                     const at::Tensor& to) {
  return any_needs_grad({x}) ? TakeRows::apply(x, from, to)
                             : x.index_select(0, from);
}

}  // namespace luna::ops
