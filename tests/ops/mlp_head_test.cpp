// A classifier's head against its two layers in float64.

#include "ops/mlp_head.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "support/train_op.h"

namespace luna::ops {
namespace {

using at::Tensor;
using luna::testing::exact;
using luna::testing::expect_close;

class MlpHeadOp : public luna::testing::TrainOpTest {};

TEST_P(MlpHeadOp, IsItsTwoLayers) {
  for (const auto& [rows, width, hidden, classes] :
       {std::array<int64_t, 4>{64, 64, 128, 10},
        {1, 2, 3, 2},
        {300, 256, 97, 64},
        {33, 100, 512, 1}}) {
    const Tensor x = at::randn({rows, width}), up = at::randn({rows, classes});
    const Tensor parameters[] = {at::randn({hidden, width}),
                                 at::randn({hidden}),
                                 at::randn({classes, hidden})};
    std::vector<Tensor> mine = {leaf(x)}, expected = {exact(x)};
    for (const Tensor& p : parameters) {
      mine.push_back(leaf(p));
      expected.push_back(exact(p));
    }
    const Tensor out = mlp_head(mine[0], mine[1], mine[2], mine[3]);
    out.backward(up.to(device()));
    const Tensor out2 = at::linear(
        at::linear(expected[0], expected[1], expected[2]).relu(), expected[3]);
    out2.backward(up.to(at::kDouble));
    expect_close(out.cpu(), out2, 1e-5, "logits");
    for (size_t i = 0; i < mine.size(); ++i) {
      expect_close(mine[i].grad().cpu(), expected[i].grad(), 1e-5,
                   "tensor " + std::to_string(i));
    }
  }
}

LUNA_EVERY_DEVICE(MlpHeadOp);

}  // namespace
}  // namespace luna::ops
