#include "luna/distill/stage_two.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <luna/convert/glue_data.h>
#include <luna/train/run_model.h>
#include <cmath>
#include <numeric>

#include "support/small_bert.h"
#include "support/temporary_folder.h"
#include "train/train_step.h"

namespace luna::distill {
namespace {

using Row = std::vector<double>;

Row softmax(Row x, double temperature) {
  double sum = 0;
  for (double& value : x) sum += value = std::exp(value / temperature);
  for (double& value : x) value /= sum;
  return x;
}

TEST(LogitsLoss, IsTheDivergenceFromTheTeacher) {
  const Row logits[] = {{1, 2, 4}, {0, 0, 3}},
            taught[] = {{2, 1, 0}, {0, -1, 2}};
  const at::Tensor given = at::tensor({1.0, 2.0, 4.0, 0.0, 0.0, 3.0}),
                   wanted = at::tensor({2.0, 1.0, 0.0, 0.0, -1.0, 2.0});
  for (const double temperature : {1.0, 2.5}) {
    double expected = 0;
    for (size_t row = 0; row < 2; ++row) {
      const Row p = softmax(taught[row], temperature),
                q = softmax(logits[row], temperature);
      for (size_t c = 0; c < 3; ++c) {
        expected += p[c] * std::log(p[c] / q[c]) / 2;
      }
    }
    EXPECT_NEAR(
        logits_loss(given.view({2, 3}), wanted.view({2, 3}), temperature)
            .item<double>(),
        temperature * temperature * expected, 1e-5);
  }
}

TEST(LogitsLoss, OfScoresIsTheSquaredError) {
  const at::Tensor given = at::tensor({1.0, 4.0}).view({2, 1}),
                   wanted = at::tensor({2.0, 1.0}).view({2, 1});
  EXPECT_NEAR(logits_loss(given, wanted, 3.0).item<double>(), (1.0 + 9.0) / 2,
              1e-6);
}

// Two samples of two tokens of width 1, the last token padding.
TEST(StatesLoss, IsTheErrorsShareOfTheTeachersStates) {
  const auto states = [](const std::vector<double>& x) {
    return at::tensor(x).view({2, 2, 1});
  };
  const at::Tensor mask = at::tensor({1, 1, 1, 0}).view({2, 2}).to(at::kBool);
  const at::Tensor first = states({9, 9, 9, 9});
  const models::LayeredModel::Attended given{
      .x = {first, states({1, 2, 3, 7}), states({1, 0, 0, 7})}, .mask = mask},
      taught{.x = {-first, states({2, 4, 3, 1}), states({3, 1, 2, 1})},
             .mask = mask};
  const double second = (1.0 + 4.0 + 0.0) / (4.0 + 16.0 + 9.0),
               third = (4.0 + 1.0 + 4.0) / (9.0 + 1.0 + 4.0);
  EXPECT_NEAR(states_loss(given, taught).item<double>(), (second + third) / 2,
              1e-6);
}

/// A softmax model and one of the same weights with linear attention.
class StageTwoTest : public luna::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    luna::testing::write_small_bert(path("bert"), 2);
    luna::testing::write_small_sst2(path("glue"), 120, 60);
    const auto original = convert::HuggingFaceModel::open(path("bert"));
    teacher = train::as_classifier(original);
    splits = convert::open_glue("sst2", path("glue"),
                                text::WordPiece::open(path("bert")),
                                original.bert()->config());
  }

  std::shared_ptr<models::LayeredModel> swapped() const {
    return train::as_classifier(
        convert::HuggingFaceModel::open(path("bert"), {.attention = "linear"}));
  }

  /// From the teacher on the test split, after some steps of the loss.
  double divergence_after(int64_t steps, const StageTwoLoss& loss) const {
    const auto learner = swapped();
    train::TrainConfig config;
    config.optimizer.lr = 3e-3;
    config.schedule.name = "constant";
    config.batch = 24;
    train::TrainStep step(learner, config,
                          stage_two_objective(learner, teacher, loss));
    data::DataOrder order(splits.train->size(), config.batch, 1);
    for (int64_t i = 0; i < steps; ++i) {
      step.run(i, std::vector{make_batch(*splits.train, order.batch(i), {})});
    }
    std::vector<int64_t> all(splits.test->size());
    std::iota(all.begin(), all.end(), int64_t{0});
    const data::Batch test = make_batch(*splits.test, all, {});
    learner->eval();
    teacher->eval();
    return logits_loss(learner->forward(test), teacher->forward(test), 1.0)
        .item<double>();
  }

  std::shared_ptr<models::LayeredModel> teacher{};
  data::Splits splits{};
};

// The small BERT's logits are chance: labels lead away from them.
TEST_F(StageTwoTest, WhatTheTeacherTeachesLeadsBackToIt) {
  const double before = divergence_after(0, {});
  EXPECT_GT(divergence_after(40, {}), before);
  EXPECT_LT(divergence_after(40, {.teacher_weight = 1.0}), 0.5 * before);
  EXPECT_LT(divergence_after(40, {.teacher_weight = 1.0, .states_weight = 1.0}),
            0.5 * before);
}

TEST_F(StageTwoTest, LearnsFromLabelsAndTeacher) {
  const auto learner = swapped();
  const data::Batch batch =
      make_batch(*splits.train, std::vector<int64_t>{0, 1, 2, 3}, {});
  teacher->eval();
  learner->eval();
  const at::Tensor taught = teacher->forward(batch).detach(),
                   logits = learner->forward(batch).detach();
  const double of_labels = train::task_loss(logits, batch).item<double>(),
               of_teacher = logits_loss(logits, taught, 2.0).item<double>();
  const double of_states =
      states_loss(learner->attended(batch), teacher->attended(batch))
          .item<double>();
  EXPECT_GT(of_states, 0.0);
  teacher->train();  // nothing may be dropped from it all the same
  for (const double weight : {0.0, 0.25, 1.0}) {
    const double of_logits = (1 - weight) * of_labels + weight * of_teacher;
    for (const double states : {0.0, 3.0}) {
      const train::Learnt learnt =
          stage_two_objective(learner, teacher,
                              {.teacher_weight = weight,
                               .temperature = 2.0,
                               .states_weight = states})(batch);
      EXPECT_NEAR(learnt.loss.item<double>(), of_logits + states * of_states,
                  1e-5);
      EXPECT_TRUE(at::equal(learnt.logits, logits));
      learnt.loss.backward();
    }
  }
  EXPECT_TRUE(learner->parameters().front().grad().defined());
  for (const at::Tensor& parameter : teacher->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

}  // namespace
}  // namespace luna::distill
