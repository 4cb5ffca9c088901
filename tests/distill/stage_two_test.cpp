#include "luna/distill/stage_two.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <luna/convert/glue_data.h>
#include <luna/train/run_model.h>
#include <cmath>

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

class StageTwoTest : public luna::testing::FolderTest {};

TEST_F(StageTwoTest, LearnsFromLabelsAndTeacher) {
  luna::testing::write_small_bert(path("bert"), 2);
  luna::testing::write_small_sst2(path("glue"), 40, 20);
  const auto original = convert::HuggingFaceModel::open(path("bert"));
  const auto swapped =
      convert::HuggingFaceModel::open(path("bert"), {.attention = "linear"});
  const auto teacher = train::as_classifier(original),
             learner = train::as_classifier(swapped);
  const auto splits = convert::open_glue("sst2", path("glue"),
                                         text::WordPiece::open(path("bert")),
                                         original.bert()->config());
  const data::Batch batch =
      make_batch(*splits.train, std::vector<int64_t>{0, 1, 2, 3}, {});
  teacher->eval();
  learner->eval();
  const at::Tensor taught = teacher->forward(batch).detach(),
                   logits = learner->forward(batch).detach();
  teacher->train();  // nothing may be dropped from it all the same
  const double of_labels = train::task_loss(logits, batch).item<double>(),
               of_teacher = logits_loss(logits, taught, 2.0).item<double>();
  for (const double weight : {0.0, 0.25, 1.0}) {
    const train::Learnt learnt = stage_two_objective(
        learner, teacher,
        {.teacher_weight = weight, .temperature = 2.0})(batch);
    EXPECT_NEAR(learnt.loss.item<double>(),
                (1 - weight) * of_labels + weight * of_teacher, 1e-6);
    learnt.loss.backward();
    EXPECT_TRUE(at::equal(learnt.logits, logits));
  }
  EXPECT_TRUE(learner->parameters().front().grad().defined());
  for (const at::Tensor& parameter : teacher->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

}  // namespace
}  // namespace luna::distill
