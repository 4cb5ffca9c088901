// Models whose layers hear of neighbours beside attention.

#include <luna/models/classifier.h>
#include <luna/nn/multi_head_attention.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include "models/packed_models.h"
#include "models/plain_model.h"
#include "models/small_translator.h"
#include "support/device.h"
#include "support/errors.h"

namespace luna::models::testing {
namespace {

/// Pictures of 2 rows and 4 columns.
data::TaskInfo pictures() {
  auto task = small_pictures();
  task.height = 2;
  task.width = 4;
  return task;
}

data::Batch batch_of_pictures() { return batch_of(sequences({8, 8, 8}, 8)); }

ModelConfig config_with(const std::string& shape,
                        const std::string& attention = "universal") {
  auto config = small_config(attention);
  config.local = 3;
  config.local_shape = shape;
  return config;
}

TEST(LocalModels, EveryTapLearns) {
  const auto batch = batch_of_pictures();
  for (const std::string shape : {"line", "square"}) {
    SCOPED_TRACE(shape);
    const auto config = config_with(shape);
    const auto model = random_model(config, pictures());
    torch::optim::SGD optimizer(model->parameters(),
                                torch::optim::SGDOptions(1e-3));
    const auto loss = [&] {
      return torch::nn::functional::cross_entropy(model->forward(batch),
                                                  batch.labels);
    };
    const auto before = loss();
    before.backward();
    int64_t found = 0;
    for (const auto& entry : model->named_parameters()) {
      if (!entry.key().ends_with(".attention.local.weight")) continue;
      ++found;
      const auto& gradient = entry.value().grad();
      ASSERT_TRUE(gradient.defined()) << entry.key();
      EXPECT_TRUE(gradient.ne(0).all().item<bool>()) << entry.key();
    }
    EXPECT_EQ(found, config.layers);
    optimizer.step();
    EXPECT_LT(loss().item<double>(), before.item<double>());
  }
}

TEST(LocalModels, AreLargerByTheirTaps) {
  const auto count = [](const std::string& shape, int64_t taps) {
    auto config = config_with(shape);
    config.local = taps;
    int64_t sum = 0;
    for (const auto& p : random_model(config, pictures())->parameters()) {
      sum += p.numel();
    }
    return sum;
  };
  const auto config = config_with("line");
  const int64_t without = count("line", 0);
  for (const int64_t taps : {1, 3, 5}) {
    const int64_t each = config.layers * config.width * taps;
    EXPECT_EQ(count("line", taps), without + each);
    EXPECT_EQ(count("square", taps), without + each * taps);
  }
}

TEST(LocalModels, HaveTheirTasksColumns) {
  for (const std::string shape : {"line", "square"}) {
    const auto model = std::dynamic_pointer_cast<Classifier>(
        random_model(config_with(shape), pictures()));
    ASSERT_NE(model, nullptr);
    for (const auto& layer : model->layers) {
      const auto& local =
          dynamic_cast<nn::MultiHeadAttentionImpl&>(*layer->attention())
              .options()
              .shape.local;
      EXPECT_EQ(local.taps, 3);
      EXPECT_EQ(local.columns, shape == "line" ? 0 : 4);
    }
  }
}

/// The config with each mechanism, norm and pooling.
template <typename Call>
void for_kinds(const std::string& shape,
               const std::vector<std::string>& poolings, const Call& call) {
  for (const std::string attention : {"softmax", "universal", "linear"}) {
    for (const std::string norm : {"pre", "post"}) {
      for (const std::string& pooling : poolings) {
        auto config = config_with(shape, attention);
        config.norm = norm;
        config.pooling = pooling;
        SCOPED_TRACE(attention + "_" + norm + "_" + pooling);
        call(config);
      }
    }
  }
}

void expect_formula(const ModelConfig& config, const data::TaskInfo& task,
                    const data::Batch& batch) {
  at::NoGradGuard no_grad;
  const auto model = random_model(config, task);
  const auto logits = model->forward(batch);
  for (int64_t i = 0; i < logits.size(0); ++i) {
    expect_near(logits.narrow(0, i, 1),
                plain_classifier(*model, config, row(batch.first, i).ids));
  }
}

TEST(LocalModels, MatchPlainFormulaWhateverThePadding) {
  for_kinds("line", {"cls", "mean"}, [](const ModelConfig& config) {
    expect_formula(config, small_task(), batch_of(sequences({9, 1, 4}, 9)));
  });
  for_kinds("square", {"mean"}, [](const ModelConfig& config) {
    expect_formula(config, pictures(), batch_of_pictures());
  });
}

TEST(LocalModels, PackedIsAsGoodAsPadded) {
  const auto batch = batch_of(sequences({9, 1, 6, 3}, 9));
  for_kinds("line", {"cls", "mean"}, [&](const ModelConfig& config) {
    const auto model = random_model(config);
    const auto expected = learn(*model, batch);
    for (const int64_t filler : {0, 5}) {
      auto other = batch;
      other.first = packed(batch.first, filler);
      expect_alike(learn(*model, other), expected);
    }
  });
}

TEST(LocalModels, RefuseToBePackedWherePlacesCount) {
  EXPECT_EQ(random_model(config_with("line"))->refuses_packed(), "");
  EXPECT_NE(random_model(config_with("square"), pictures())->refuses_packed(),
            "");
  auto config = config_with("line");
  config.black = "padding";
  EXPECT_NE(random_model(config, pictures())->refuses_packed(), "");
}

TEST(LocalModels, BlackThatIsPaddingIsNotHeard) {
  at::NoGradGuard no_grad;
  auto batch = batch_of_pictures();
  batch.first.ids.clamp_min_(1);
  for (const int64_t pixel : {2, 3, 5})
    batch.first.ids.select(1, pixel).zero_();
  for (const std::string shape : {"line", "square"}) {
    SCOPED_TRACE(shape);
    auto config = config_with(shape);
    config.black = "padding";
    const auto model = random_model(config, pictures());
    const auto logits = model->forward(batch);
    model->named_parameters()["embedding.tokens.weight"][0].fill_(100);
    expect_near(model->forward(batch), logits);
  }
}

TEST(LocalModels, RefuseWhatCannotBe) {
  using luna::testing::expect_error;
  const auto refuses = [](const ModelConfig& config, const data::TaskInfo& task,
                          const std::vector<std::string>& parts) {
    expect_error<c10::ValueError>([&] { make_model(config, task, kLongest); },
                                  parts);
  };
  auto config = config_with("line");
  config.local = 2;
  refuses(config, small_task(), {"local", "odd", "got 2"});
  refuses(config_with("line", "nested"), small_task(), {"local", "nested"});

  config = config_with("square");
  refuses(config, small_task(), {"local_shape", "square"});
  auto colour = pictures();
  colour.channels = 3;
  refuses(config, colour, {"local_shape", "square"});
  config.pooling = "cls";
  refuses(config, pictures(), {"local_shape", "cls"});

  config = luna::testing::small_translator("universal", "pre");
  config.local = 3;
  expect_error<c10::ValueError>([&] { luna::testing::make_translator(config); },
                                {"local"});
}

class LocalOnDevice : public luna::testing::DeviceTest {};

// float32, of a mechanism without knots: beside one, numbers that differ in
// their last bit have other slopes.
TEST_P(LocalOnDevice, IsThatOfTheCpu) {
  for (const std::string shape : {"line", "square"}) {
    SCOPED_TRACE(shape);
    auto config = config_with(shape, "linear");
    config.width = 24;
    const auto model = random_model(config, pictures());
    model->to(at::kFloat);
    const auto expected = learn(*model, batch_of_pictures());
    model->to(device());
    expect_alike(learn(*model, batch_of_pictures()), expected, 1e-4);
  }
}

LUNA_EVERY_DEVICE(LocalOnDevice);

}  // namespace
}  // namespace luna::models::testing
