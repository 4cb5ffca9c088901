#include "models/small_models.h"
#include "support/errors.h"

namespace luna::models::testing {
namespace {

data::Batch pairs(data::Sequences first, data::Sequences second) {
  auto batch = batch_of(std::move(first));
  batch.second = std::move(second);
  return batch;
}

std::shared_ptr<PairClassifier> pair_model(const ModelConfig& config) {
  return std::dynamic_pointer_cast<PairClassifier>(random_model(config, true));
}

// head(full) = W [a, b, a*b, a-b] + bias, a and b from one encoder.
TEST(PairClassifier, ClassifiesWhatOneEncoderSaysOfBoth) {
  at::NoGradGuard no_grad;
  for (const auto& info : nn::attentions()) {
    auto config = small_config(info.name);
    const auto first = sequences({9, 4}, 9, 1),
               second = sequences({2, 6}, 6, 2);
    const auto batch = pairs(first, second);
    const auto model = pair_model(config);
    const auto a = model->pool(first), b = model->pool(second);
    const auto weight = model->head->out->weight.chunk(4, 1);
    expect_near(model->forward(batch),
                at::matmul(a, weight[0].t()) + at::matmul(b, weight[1].t()) +
                    at::matmul(a * b, weight[2].t()) +
                    at::matmul(a - b, weight[3].t()) + model->head->out->bias);

    config.pair_features = "concat";
    const auto plain = pair_model(config);
    const auto halves = plain->head->out->weight.chunk(2, 1);
    const auto c = plain->pool(first), d = plain->pool(second);
    expect_near(plain->forward(batch), at::matmul(c, halves[0].t()) +
                                           at::matmul(d, halves[1].t()) +
                                           plain->head->out->bias);
  }
}

TEST(PairClassifier, RefusesSingleSequences) {
  const auto model = random_model(small_config("universal"), true);
  luna::testing::expect_error<c10::ValueError>(
      [&] { model->forward(batch_of(sequences({4}, 4))); },
      {"pairs", "single"});
}

}  // namespace
}  // namespace luna::models::testing
