// Runs that start from a Hugging Face folder.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/convert/hugging_face.h>
#include <luna/models/bert_classifier.h>
#include <luna/train/open_data.h>
#include <luna/train/read_config.h>
#include <luna/train/run_model.h>
#include <luna/train/trainer.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "luna/io/text_file.h"
#include "support/errors.h"
#include "support/small_bert.h"
#include "support/temporary_folder.h"
#include "train/tiny.h"

namespace luna::train {
namespace {

using luna::testing::bytes_of;
using luna::testing::expect_error;
using luna::testing::metrics_without_times;

class BaseModelTest : public luna::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    luna::testing::write_small_bert(path("bert"), 0);
    luna::testing::write_small_sst2(path("glue"), 200, 60);
  }

  TrainConfig config() const {
    TrainConfig config;
    config.name = "small";
    config.data.task = "sst2";
    config.data.path = path("glue");
    config.model.base = path("bert");
    config.model.attention = "softmax";
    config.optimizer.lr = 3e-3;
    config.schedule = {.name = "polynomial", .warmup = 2};
    config.steps = 60;
    config.batch = 16;
    config.eval_every = 20;
    config.checkpoint_every = 10;
    return config;
  }

  TrainResult run(const TrainConfig& c, const std::string& folder,
                  bool resume = false, int64_t stop_after = -1) const {
    int64_t steps = 0;
    return train(
        c, open_data(c, ""), {.folder = folder, .resume = resume},
        {.stop = [&] { return stop_after >= 0 && steps++ >= stop_after; }});
  }
};

TEST_F(BaseModelTest, LearnsATaskAndBecomesAFolder) {
  TrainConfig c = config();
  c.steps = 200;
  const TrainResult result = run(c, path("run"));
  EXPECT_GE(result.best.accuracy, 0.8);

  // The best weights as a folder with the task's head: the same predictions.
  const auto trained = open_trained(path("run"));
  trained.write(path("folder"));
  const auto model = convert::HuggingFaceModel::open(path("folder"));
  EXPECT_EQ(model.architecture(), "BertForSequenceClassification");
  EXPECT_EQ(model.labels().size(), 2u);
  const Splits splits = open_data(c, "");
  models::BertClassifier again(model.bert());
  const auto test = evaluate(again, *splits.test, {.batch = 16});
  EXPECT_DOUBLE_EQ(test->accuracy, result.test->accuracy);
  EXPECT_NEAR(test->loss, result.test->loss, 1e-6);
  // transformers looks for the base model's tensors behind a prefix.
  const io::Weights weights = io::open_weights(path("folder"));
  for (const io::TensorEntry& entry : weights.entries()) {
    EXPECT_TRUE(entry.name.starts_with("bert.") ||
                entry.name.starts_with("classifier."))
        << entry.name;
  }
}

TEST_F(BaseModelTest, AFolderWithoutSafetensorsIsNoRunAndNoPlaceForOne) {
  luna::testing::write_small_bert(path("other"), 0);
  std::filesystem::remove(path("other/model.safetensors"));
  EXPECT_FALSE(RunFolder(path("other")).holds_run());
  const auto open = [&] { open_trained(path("other")); };
  expect_error<c10::ValueError>(open, {path("other"), "model.safetensors"});
  io::write_text(path("other/pytorch_model.bin"), "pickled");
  expect_error<c10::ValueError>(
      open, {path("other/pytorch_model.bin"), "expected safetensors"});
  expect_error<c10::ValueError>([&] { check_run_folder(path("other")); },
                                {path("other"), "a Hugging Face folder"});
  const std::string before = io::read_text(path("other/config.json"));
  expect_error<c10::ValueError>([&] { run(config(), path("other")); },
                                {path("other/config.json"), "another folder"});
  expect_error<c10::ValueError>([&] { run(config(), path("bert")); },
                                {path("bert/config.json"), "another folder"});
  EXPECT_EQ(io::read_text(path("other/config.json")), before);
}

/// Labels are compared by index: names in another order would be wrong.
TEST_F(BaseModelTest, ClassesInTheTasksOrder) {
  luna::testing::write_small_bert(path("two"), 2);
  const std::string file = path("two/config.json");
  auto json = nlohmann::ordered_json::parse(io::read_text(file));
  const auto open = [&](const char* first, const char* second) {
    json["id2label"] = {{"0", first}, {"1", second}};
    io::write_text(file, json.dump());
    open_task(convert::HuggingFaceModel::open(path("two")), "rte",
              {.data = path("nowhere")});
  };
  expect_error<c10::ValueError>(
      [&] { open("Not_Entailment", "entailment"); },
      {file + ": id2label: expected", "entailment, not_entailment",
       "got Not_Entailment, entailment"});
  // The names are good; there are no files.
  expect_error<c10::ValueError>([&] { open("Entailment", "not_entailment"); },
                                {path("nowhere")});
  expect_error<c10::ValueError>([&] { open("yes", "no"); }, {path("nowhere")});
}

TEST_F(BaseModelTest, ResumesToTheSameBits) {
  TrainConfig c = config();
  c.steps = 24;
  run(c, path("whole"));
  run(c, path("cut"), false, 13);
  run(c, path("cut"), true);
  EXPECT_EQ(metrics_without_times(path("whole")),
            metrics_without_times(path("cut")));
  EXPECT_EQ(bytes_of(path("whole/best/model.safetensors")),
            bytes_of(path("cut/best/model.safetensors")));
}

TEST_F(BaseModelTest, TestIsThePublishedValidationFile) {
  const Splits splits = open_data(config(), "");
  EXPECT_EQ(splits.train->size(), 180);
  EXPECT_EQ(splits.validation->size(), 20);
  ASSERT_EQ(splits.test->size(), 60);
  // [CLS] w... [SEP], words from id 5 on
  std::istringstream lines(io::read_text(path("glue/sst2_dev.tsv")));
  std::string line;
  std::getline(lines, line);
  for (int64_t i = 0; i < 60; ++i) {
    std::getline(lines, line);
    const data::Sample sample = (*splits.test)[i];
    std::vector<int32_t> expected = {2};
    for (size_t at = line.find('w'); at != std::string::npos;
         at = line.find('w', at + 1)) {
      expected.push_back(5 + (line[at + 1] - '0'));
    }
    expected.push_back(3);
    EXPECT_EQ(std::vector<int32_t>(sample.tokens.begin(), sample.tokens.end()),
              expected);
    EXPECT_EQ(sample.label, line.back() - '0');
    EXPECT_EQ(sample.text, line.substr(0, line.find('\t')));
  }
}

TEST_F(BaseModelTest, AModelSaysWhatItsFolderDoesNotHave) {
  const auto write = [&](const std::string& model, const std::string& task) {
    io::write_text(path("c.json"), R"({"data": {"task": ")" + task +
                                       R"("}, "model": {"base": "b", )" +
                                       model + "}}");
    read_train_config(path("c.json"));
  };
  EXPECT_NO_THROW(write(R"("attention": "universal")", "sst2"));
  expect_error<c10::ValueError>(
      [&] { write(R"("attention": "softmax", "width": 32)", "sst2"); },
      {"model.width", "beside base", "got 32"});
  expect_error<c10::ValueError>(
      [&] { write(R"("attention": "nested")", "sst2"); },
      {"model.attention", "head-level", "got nested"});
  expect_error<c10::ValueError>(
      [&] { write(R"("attention": "softmax")", "listops"); },
      {"data", "task", "got listops"});
  TrainConfig c = config();
  c.data.path.clear();
  expect_error<c10::ValueError>([&] { open_data(c, ""); },
                                {"data.path", "tsv files of sst2"});
}

}  // namespace
}  // namespace luna::train
