#include "luna/train/evaluate.h"

#include <ATen/Context.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "luna/data/memory_dataset.h"
#include "support/errors.h"
#include "train/tiny.h"

namespace luna::train {
namespace {

/// Takes a sample for the class that its first id says.
class Echo : public models::Model {
 public:
  Echo() { register_parameter("unused", at::zeros({1})); }
  at::Tensor forward(const data::Batch& batch) override {
    EXPECT_FALSE(is_training());
    return at::one_hot(batch.first.ids.select(1, 0), 3).to(at::kFloat);
  }
  data::BatchOptions batch_options() const override { return {}; }
};

TEST(Evaluate, CountsWhatWasTakenForWhat) {
  data::MemoryDataset data({.task = "t", .vocabulary = 3, .classes = 3});
  const auto add = [&](uint8_t id, int64_t label, size_t length) {
    const std::vector<uint8_t> ids(length, id);
    data.add({.ids = ids, .label = label});
  };
  add(0, 0, 5);
  add(1, 0, 2);
  add(1, 0, 3);
  add(1, 1, 1);
  add(2, 2, 4);
  Echo model;
  for (const int64_t batch : {1, 2, 10}) {
    const auto result = evaluate(model, data, {.batch = batch});
    ASSERT_TRUE(result);
    EXPECT_EQ(result->confusion,
              (std::vector<int64_t>{1, 2, 0, 0, 1, 0, 0, 0, 1}));
    EXPECT_EQ(result->accuracy, 0.6);
    // Logits are 1 for one class, 0 for two.
    const double sum = std::log(std::exp(1.0) + 2);
    EXPECT_NEAR(result->loss, (3 * (sum - 1) + 2 * sum) / 5, 1e-6);
  }
  EXPECT_TRUE(model.is_training());
}

TEST(Evaluate, TakesTheSamePartEveryTime) {
  const auto data = testing::tiny_data(40, 5);
  testing::TinyModel model;
  const EvaluateOptions part{.batch = 7, .samples = 15, .seed = 3};
  const auto a = evaluate(model, *data, part), b = evaluate(model, *data, part);
  EXPECT_EQ(a->samples, 15);
  EXPECT_EQ(a->confusion, b->confusion);
  EXPECT_EQ(a->loss, b->loss);
  EXPECT_EQ(evaluate(model, *data, {.samples = 400})->samples, 40);
}

TEST(Evaluate, StopsWhenTold) {
  testing::TinyModel model;
  int asked = 0;
  const auto result =
      evaluate(model, *testing::tiny_data(40, 5),
               {.batch = 4, .stop = [&] { return ++asked > 3; }});
  EXPECT_FALSE(result);
  EXPECT_EQ(asked, 4);
  EXPECT_TRUE(model.is_training());
}

}  // namespace
}  // namespace luna::train
