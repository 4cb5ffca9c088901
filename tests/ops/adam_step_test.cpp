// The update of many small tensors against torch's.

#include "ops/adam_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/train_op.h"

namespace luna::ops {
namespace {

using at::Tensor;
using luna::testing::expect_close;

class AdamStepOp : public luna::testing::TrainOpTest {};

TEST_P(AdamStepOp, IsThatOfTorch) {
  if (!device().is_cuda()) GTEST_SKIP() << "a CPU has torch's";
  for (const bool decoupled : {false, true}) {
    std::vector<Tensor> lists[2][4];
    for (const int64_t size : {1, 1000, 1024, 1025, 30000}) {
      for (int kind = 0; kind < 4; ++kind) {
        Tensor x = at::randn({size}).to(device());
        if (kind == 3) x = x.square();
        lists[0][kind].push_back(x);
        lists[1][kind].push_back(x.clone());
      }
    }
    const auto scalar = [&](double x) { return at::full({}, x).to(device()); };
    expect_close(norm_of_few(lists[0][1]).cpu(),
                 at::cat(lists[0][1]).cpu().to(at::kDouble).norm(), 1e-6,
                 "norm");
    for (const double skip : {0.0, 1.0}) {
      auto& [p, g, m, v] = lists[0];
      adam_step_of_few(p, g, m, v,
                       {scalar(7), scalar(0.01), scalar(2), scalar(skip)},
                       {0.9, 0.98, 1e-8, 0.1, decoupled});
      auto& [tp, tg, tm, tv] = lists[1];
      const std::vector<Tensor> steps(tp.size(), scalar(7));
      // Torch's divides the gradients where they are.
      std::vector<Tensor> own;
      for (const Tensor& x : tg) own.push_back(x.clone());
      const auto torchs = [&](auto&& update) {
        update(tp, own, tm, tv, at::TensorList{}, steps, scalar(0.01), 0.9,
               0.98, 0.1, 1e-8, false, false, scalar(2), scalar(skip));
      };
      if (decoupled) {
        torchs([](auto&&... a) { at::_fused_adamw_(a...); });
      } else {
        torchs([](auto&&... a) { at::_fused_adam_(a...); });
      }
      for (const int kind : {0, 2, 3}) {
        for (size_t i = 0; i < p.size(); ++i) {
          expect_close(lists[0][kind][i].cpu(), lists[1][kind][i].cpu(), 1e-6,
                       "tensor " + std::to_string(i) + " of kind " +
                           std::to_string(kind));
        }
      }
    }
  }
}

LUNA_EVERY_DEVICE(AdamStepOp);

}  // namespace
}  // namespace luna::ops
