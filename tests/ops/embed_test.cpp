// Two tables' rows against at::embedding in float64, packed sequences too.

#include "ops/embed.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>

#include "support/train_op.h"

namespace luna::ops {
namespace {

using at::Tensor;
using luna::testing::exact;
using luna::testing::expect_close;
using luna::testing::expect_same;

class EmbedOp : public luna::testing::TrainOpTest {};

TEST_P(EmbedOp, IsTheSumOfTwoRows) {
  for (const int64_t rows : {6, 9}) {
    const Tensor ids = at::randint(11, {4, 6}, at::kLong);
    const Tensor mask =
        at::arange(6).lt(at::tensor({6, 0, 3, 5}, at::kLong).unsqueeze(1));
    const Tensor tokens = at::randn({11, 10}),
                 positions = at::randn({rows, 10});
    const Tensor up = at::randn({4, 6, 10});
    const Tensor t1 = leaf(tokens), p1 = leaf(positions);
    const Tensor out =
        embed(ids.to(device()), t1, p1, {.mask = mask.to(device())});
    (out * up.to(device())).sum().backward();
    const Tensor t2 = exact(tokens), p2 = exact(positions);
    const Tensor out2 =
        (at::embedding(t2, ids) + p2.narrow(0, 0, 6)) * mask.unsqueeze(-1);
    (out2 * up).sum().backward();
    expect_close(out.cpu(), out2, 1e-6, "rows");
    expect_close(t1.grad().cpu(), t2.grad(), 1e-5, "tokens");
    expect_close(p1.grad().cpu(), p2.grad(), 1e-5, "positions");
  }
}

TEST_P(EmbedOp, OfManyTokensIsTheSumOfTwoRows) {
  for (const auto& [width, length] : {std::pair(64, 1000), std::pair(136, 300),
                                      std::pair(70, 7), std::pair(512, 40)}) {
    const int64_t batch = length > 500 ? 3 : 90;
    // Some ids come often, some never.
    const Tensor ids =
        at::randint(200, {batch, length}, at::kLong).bitwise_and(0xF3);
    const Tensor tokens = at::randn({258, width}),
                 positions = at::randn({length, width}),
                 up = at::randn({batch, length, width});
    const Tensor t1 = leaf(tokens), p1 = leaf(positions);
    const Tensor out = embed(ids.to(device()), t1, p1, {});
    out.backward(up.to(device()));
    const Tensor t2 = exact(tokens), p2 = exact(positions);
    const Tensor out2 = at::embedding(t2, ids) + p2;
    out2.backward(up.to(at::kDouble));
    expect_close(out.cpu(), out2, 1e-6, "rows");
    expect_close(t1.grad().cpu(), t2.grad(), 1e-5, "tokens");
    expect_close(p1.grad().cpu(), p2.grad(), 1e-5, "positions");
    const Tensor first = t1.grad().clone();
    t1.mutable_grad() = Tensor();
    embed(ids.to(device()), t1, p1, {}).backward(up.to(device()));
    expect_same(t1.grad().cpu(), first.cpu(), "a second time");
  }
}

TEST_P(EmbedOp, CountsPlacesInPackedSequences) {
  // Sequences of 300, 0, 1 and 411 tokens, a filler of 88
  const Tensor starts = at::tensor({0, 300, 300, 301, 712, 800}, at::kLong);
  Tensor places = at::zeros({800}, at::kLong);
  places.narrow(0, 0, 300).copy_(at::arange(300));
  places.narrow(0, 301, 411).copy_(at::arange(411));
  for (const int64_t width : {64, 70, 256}) {
    const Tensor ids = at::randint(100, {1, 800}, at::kLong);
    const Tensor tokens = at::randn({100, width}),
                 positions = at::randn({413, width});
    Tensor up = at::randn({1, 800, width});
    const Tensor t1 = leaf(tokens), p1 = leaf(positions);
    const auto sum = [&](double p) {
      return embed(
          ids.to(device()), t1, p1,
          {.dropout_p = p, .seed = seed(), .starts = starts.to(device())});
    };
    const Tensor out = sum(0);
    out.backward(up.to(device()));
    const Tensor t2 = exact(tokens), p2 = exact(positions);
    const Tensor out2 = at::embedding(t2, ids) + at::embedding(p2, places);
    up.narrow(1, 712, 88).zero_();  // what comes back for the filler
    out2.backward(up.to(at::kDouble));
    expect_close(out.cpu(), out2, 1e-6, "rows");
    expect_close(t1.grad().cpu(), t2.grad(), 1e-5, "tokens");
    expect_close(p1.grad().cpu(), p2.grad(), 1e-5, "positions");
    const Tensor dropped = sum(0.4).detach().cpu();
    const Tensor kept = dropped.ne(0);
    EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 0.6, 0.02);
    expect_close(dropped, out2.detach() * kept / 0.6, 1e-6, "dropped");
  }
}

TEST_P(EmbedOp, DropsTheSameInBothDirections) {
  const double p = 0.4;
  const Tensor ids = at::randint(5, {30, 40}, at::kLong).to(device());
  const Tensor tokens = leaf(at::ones({5, 16})),
               positions = leaf(at::zeros({40, 16}));
  const Tensor out =
      embed(ids, tokens, positions, {.dropout_p = p, .seed = seed()});
  out.sum().backward();
  // 19,200 draws: the share's deviation is .0035.
  EXPECT_NEAR(out.eq(0).to(at::kDouble).mean().item<double>(), p, 0.018);
  expect_close(positions.grad().cpu(), out.detach().sum(0).cpu(), 1e-6,
               "positions");
  const Tensor expected = at::zeros({5, 16}).index_add(
      0, ids.cpu().flatten(), out.detach().cpu().flatten(0, 1));
  expect_close(tokens.grad().cpu(), expected, 1e-5, "tokens");
  const Tensor on_cpu =
      embed(ids.cpu(), tokens.detach().cpu(), positions.detach().cpu(),
            {.dropout_p = p, .seed = seed().cpu()});
  expect_same(out.detach().cpu(), on_cpu, "the CPU's");
}

LUNA_EVERY_DEVICE(EmbedOp);

}  // namespace
}  // namespace luna::ops
