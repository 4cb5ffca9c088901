// A step of the fused ops, recorded once.

#include "ops/device_graph.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/adam_step.h"
#include "ops/add_norm.h"
#include "ops/cross_entropy.h"
#include "ops/embed.h"
#include "ops/feed_forward.h"
#include "ops/linear.h"
#include "ops/mlp_head.h"
#include "support/train_op.h"

namespace luna::ops {
namespace {

using at::Tensor;
using luna::testing::expect_same;

class DeviceGraphOp : public luna::testing::TrainOpTest {};

// With the sizes of a real step, the same bits as without a recording, time
// and again.
TEST_P(DeviceGraphOp, RecordedStepsRepeat) {
  if (!device().is_cuda()) GTEST_SKIP() << "a CPU records nothing";
  const int64_t batch = 64, length = 1024, width = 64;
  const auto drawn = [&](at::IntArrayRef sizes) {
    return leaf(at::randn(sizes) / 8);
  };
  const Tensor ids = at::randint(256, {batch, length}, at::kLong).to(device());
  const Tensor labels = at::randint(10, {batch}, at::kLong).to(device());
  std::vector<Tensor> all;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{258, width},
                                            {length, width},
                                            {width},
                                            {width},
                                            {width, width},
                                            {width},
                                            {width, width},
                                            {width},
                                            {width, width},
                                            {width},
                                            {2 * width, width},
                                            {2 * width},
                                            {width, 2 * width},
                                            {width},
                                            {128, width},
                                            {128},
                                            {10, 128}}) {
    all.push_back(drawn(sizes));
  }
  const Tensor words = seed();
  std::vector<Tensor> results;
  const auto step = [&] {
    for (const Tensor& p : all) p.mutable_grad() = Tensor();
    const Tensor x =
        embed(ids, all[0], all[1], {.dropout_p = 0.1, .seed = words});
    const auto [same, normed, low] = add_norm(x, std::nullopt, all[2], all[3],
                                              {.normed_dtype = at::kBFloat16});
    const auto three = joint_linears(normed, {all[4], all[6], all[8]},
                                     {all[5], all[7], all[9]}, at::kBFloat16);
    const Tensor y = feed_forward(three[0] + three[1] * three[2], all[10],
                                  all[11], all[12], all[13]);
    const auto [sum, again, none] =
        add_norm(same, y, all[2], all[3], {.dropout_p = 0.1, .seed = words});
    const Tensor logits = mlp_head(again.mean(1), all[14], all[15], all[16]);
    cross_entropy(logits, labels).loss.backward();
    std::vector<Tensor> grads;
    for (const Tensor& p : all) grads.push_back(p.grad());
    grads.push_back(norm_of_few(grads));
    if (results.empty()) {
      for (const Tensor& g : grads) results.push_back(at::zeros_like(g));
    }
    for (size_t i = 0; i < grads.size(); ++i) results[i].copy_(grads[i]);
  };
  step();
  std::vector<Tensor> expected;
  for (const Tensor& r : results) expected.push_back(r.clone());
  const auto graph = capture_graph(device(), step);
  for (int turn = 0; turn < 3; ++turn) {
    for (const Tensor& r : results) r.zero_();
    graph->replay();
    for (size_t i = 0; i < results.size(); ++i) {
      expect_same(results[i].cpu(), expected[i].cpu(),
                  "tensor " + std::to_string(i));
    }
  }
}

LUNA_EVERY_DEVICE(DeviceGraphOp);

}  // namespace
}  // namespace luna::ops
