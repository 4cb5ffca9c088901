#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/convert/hugging_face.h>
#include <luna/data/memory_dataset.h>
#include <luna/io/text_file.h>
#include <luna/train/read_config.h>
#include <luna/train/run_model.h>
#include <luna/train/trainer.h>

#include "support/check.h"
#include "support/device.h"
#include "support/errors.h"
#include "train/tiny.h"
#include "train/train_step.h"

// A ViT trained from scratch on pictures, augmented and blended.

namespace luna::train {
namespace {

using luna::testing::bytes_of;
using luna::testing::DeviceTest;
using luna::testing::expect_error;
using luna::testing::fresh_folder;
using luna::testing::metrics_without_times;

constexpr int64_t kSide = 8;

/// Ten classes, each of a brightness and a colour of its own, and noise.
std::shared_ptr<data::MemoryDataset> coloured(int64_t samples, int64_t seed) {
  auto data =
      std::make_shared<data::MemoryDataset>(data::TaskInfo{.task = "cifar10",
                                                           .vocabulary = 256,
                                                           .classes = 10,
                                                           .height = kSide,
                                                           .width = kSide,
                                                           .channels = 3});
  uint32_t state = static_cast<uint32_t>(seed);
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t label = i % 10;
    std::vector<uint8_t> ids(3 * kSide * kSide);
    for (size_t j = 0; j < ids.size(); ++j) {
      state = state * 1664525 + 1013904223;
      const auto channel = static_cast<int64_t>(j / (kSide * kSide));
      ids[j] = static_cast<uint8_t>(20 * label + (label % 3 == channel) * 40 +
                                    (state >> 28));
    }
    data->add({.ids = ids, .label = label});
  }
  return data;
}

Splits pictures() {
  return {coloured(80, 1), coloured(20, 2), coloured(30, 3)};
}

TrainConfig small_vit() {
  TrainConfig config;
  config.name = "vit";
  config.data.task = "cifar10";
  config.data.augment = true;
  config.data.mixup = 0.2;
  config.data.cutmix = 0.3;
  config.model.attention = "softmax";
  config.model.patch = 4;
  config.model.layers = 2;
  config.model.width = 16;
  config.model.ffn = 32;
  config.model.pooling = "cls";
  config.model.dropout = 0.1;
  config.optimizer.lr = 3e-3;
  config.label_smoothing = 0.1;
  config.steps = 12;
  config.batch = 10;
  config.log_every = 2;
  config.eval_every = 6;
  config.checkpoint_every = 4;
  return config;
}

class VitRun : public DeviceTest {
 protected:
  TrainOptions options(const std::string& folder, bool resume = false) const {
    return {.folder = folder, .resume = resume, .device = device()};
  }
};

TEST_P(VitRun, LearnsAndGivesAFolder) {
  TrainConfig config = small_vit();
  config.steps = 150;
  config.eval_every = 150;
  config.data.mixup = config.data.cutmix = 0;
  config.data.augment = false;
  const std::string folder = fresh_folder("vit_learns");
  const TrainResult result = train(config, pictures(), options(folder));
  EXPECT_GT(result.test->accuracy, 0.8);
  const auto model = open_trained(folder);
  EXPECT_EQ(model.architecture(), "ViTForImageClassification");
  EXPECT_EQ(model.labels()[3], "cat");
  EXPECT_TRUE(model.unused().empty());
  const auto classifier = as_classifier(model);
  classifier->eval();
  const auto again = evaluate(*classifier, *pictures().test, {.batch = 7});
  EXPECT_EQ(again->accuracy, result.test->accuracy);
  EXPECT_NEAR(again->loss, result.test->loss, 1e-4);
}

TEST_P(VitRun, AResumedRunSeesTheSamePictures) {
  const std::string whole = fresh_folder("vit_whole"),
                    parts = fresh_folder("vit_parts");
  const TrainConfig config = small_vit();
  train(config, pictures(), options(whole));
  int64_t asked = 0;
  const TrainResult stopped = train(config, pictures(), options(parts),
                                    {.stop = [&] { return ++asked == 7; }});
  ASSERT_EQ(stopped.end, TrainResult::End::kInterrupted);
  train(config, pictures(), options(parts, /*resume=*/true));
  for (const char* file :
       {"/best/model.safetensors", "/hugging_face/model.safetensors",
        "/checkpoints/step-00000012/optimizer.safetensors"}) {
    EXPECT_EQ(bytes_of(whole + file), bytes_of(parts + file)) << file;
  }
  EXPECT_EQ(metrics_without_times(whole), metrics_without_times(parts));
}

LUNA_EVERY_DEVICE(VitRun);

TEST(TaskLoss, BlendedPicturesHaveTwoLabels) {
  const at::Tensor logits = at::randn({3, 4});
  data::Batch batch{.labels = at::tensor({0, 3, 2}, at::kLong)};
  const auto one = [&](int64_t row, int64_t label) {
    return -logits[row].log_softmax(0)[label].item<double>();
  };
  batch.blends = at::zeros({3, 6});
  batch.blends.select(1, 5).copy_(at::tensor({0.25, 1.0, 0.5}));
  // The partner of row i is row 2 - i.
  const double expected = (0.25 * one(0, 0) + 0.75 * one(0, 2) + one(1, 3) +
                           0.5 * one(2, 2) + 0.5 * one(2, 0)) /
                          3;
  EXPECT_NEAR(task_loss(logits, batch).item<double>(), expected, 1e-6);
}

TEST(TaskLoss, ScoresHaveASquaredError) {
  const data::Batch batch{.labels = at::tensor({1.0, 4.0}, at::kFloat)};
  const at::Tensor logits = at::tensor({2.0, 1.0}, at::kFloat).unsqueeze(1);
  EXPECT_NEAR(task_loss(logits, batch).item<double>(), (1.0 + 9.0) / 2, 1e-6);
}

TEST(VitConfigs, RefusesWhatTransformersCannotBe) {
  const std::string path = fresh_folder("vit_config");
  const auto expect_refused =
      [&](const std::function<void(TrainConfig&)>& spoil,
          const std::vector<std::string>& parts) {
        TrainConfig config = small_vit();
        spoil(config);
        io::write_text(path, config_text(config));
        expect_error<c10::ValueError>([&] { read_train_config(path); }, parts);
      };
  expect_refused([](TrainConfig& c) { c.model.norm = "post"; },
                 {"model.norm: expected pre with patch, got post"});
  expect_refused([](TrainConfig& c) { c.model.pooling = "mean"; },
                 {"model.pooling: expected cls"});
  expect_refused([](TrainConfig& c) { c.data.task = "listops"; },
                 {"expected task to be one of cifar10, got listops"});
  expect_refused([](TrainConfig& c) { c.data.mixup = 0.8; },
                 {"at most 1 together", "got 0.8 and 0.3"});
  expect_refused(
      [](TrainConfig& c) {
        c.model.patch = 0;
        c.model.pooling = "mean";
      },
      {"mixup", "expected a ViT (model.patch)"});
  expect_refused([](TrainConfig& c) { c.model.attention = "nested"; },
                 {"model.attention: expected a head-level mechanism"});
}

}  // namespace
}  // namespace luna::train
