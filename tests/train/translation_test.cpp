// Translation by the trainer that trains classifiers.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/io/safetensors.h>
#include <luna/train/translate.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "luna/io/text_file.h"
#include "support/device.h"
#include "support/errors.h"
#include "train/packing.h"
#include "train/run_batches.h"
#include "train/tiny.h"
#include "train/tiny_translation.h"
#include "train/train_step.h"

namespace luna::train {
namespace {

using luna::testing::bytes_of;
using luna::testing::expect_error;
using luna::testing::fresh_folder;
using luna::testing::metrics_without_times;
using luna::testing::tiny_translation;
using luna::testing::tiny_translation_config;
using End = TrainResult::End;

class TranslationTraining : public ::testing::TestWithParam<std::string> {};

TEST_P(TranslationTraining, LearnsItsOwnLinesByHeart) {
  TrainConfig config = tiny_translation_config(GetParam());
  config.model.dropout = config.label_smoothing = 0;
  // How many steps it takes differs with the processor's rounding.
  config.steps = config.checkpoint_every = 3000;
  config.eval_every = 150;
  config.patience = 3;
  config.optimizer.lr = 0.003;
  if (GetParam() == "universal") {
    // As torch starts it most channels of psi die; of some seeds, nearly all.
    config.model.attention_options["lift"] = 1.0;
    config.optimizer.feature_map_lr = 0.1;
  }
  config.translation.batch_tokens = 256;
  config.average = 0;
  const std::string folder = fresh_folder("by-heart-" + GetParam());
  const TrainResult result =
      train(config, tiny_translation(24, 24), {.folder = folder});
  ASSERT_TRUE(result.test);
  EXPECT_EQ(result.test->metric, "bleu");
  EXPECT_NEAR(result.test->score, 100, 1e-9);
  EXPECT_NEAR(result.best.score, 100, 1e-9);
  // The folder alone is enough to translate.
  OpenTranslator open = open_translator(folder);
  const auto found = translate(*open.model, open.specials,
                               {open.tokenizer.encode("cat a a sees")},
                               {.search = {.beam = 1}});
  const auto pairs = luna::testing::tiny_sentences(3).pairs();
  ASSERT_EQ(pairs[2].first, "cat a a sees");
  EXPECT_EQ(line_of(open.tokenizer, found->at(0).front()), pairs[2].second);
}
INSTANTIATE_TEST_SUITE_P(All, TranslationTraining,
                         ::testing::Values("softmax", "nested", "universal"));

/// What a finished run leaves, but for times.
std::map<std::string, std::string> outcome(const std::string& folder) {
  const RunFolder run(folder);
  std::map<std::string, std::string> all;
  all["metrics"] = metrics_without_times(folder);
  const std::string last = run.checkpoint(run.steps().front());
  for (const std::string& file :
       {last + "/model.safetensors", last + "/optimizer.safetensors",
        run.best() + "/model.safetensors", run.best() + "/state.json",
        run.averaged() + "/model.safetensors", run.samples(),
        run.tokenizer()}) {
    all[std::filesystem::relative(file, folder)] = bytes_of(file);
  }
  return all;
}

/// Names of what differs.
std::string difference(const std::map<std::string, std::string>& a,
                       const std::map<std::string, std::string>& b) {
  std::string names = a.size() == b.size() ? "" : "files ";
  for (const auto& [name, bytes] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second != bytes) names += name + " ";
  }
  return names;
}

TEST(TranslationResume, StoppedAnywhereItGoesOnToTheSameBits) {
  const TrainConfig config = tiny_translation_config("nested");
  const auto splits = tiny_translation(20, 5);
  const std::string whole = fresh_folder("mt-whole");
  train(config, splits, {.folder = whole});
  const auto expected = outcome(whole);
  int64_t stops = 0;
  bool was_stopped = true;
  for (int64_t limit = 1; was_stopped; limit += 5) {
    const std::string folder = fresh_folder("mt-stopped");
    int64_t asked = 0;
    const auto first = train(config, splits, {.folder = folder},
                             {.stop = [&] { return ++asked >= limit; }});
    was_stopped = first.end == End::kInterrupted;
    stops += was_stopped;
    if (was_stopped) {
      const auto second =
          train(config, splits, {.folder = folder, .resume = true});
      EXPECT_EQ(second.end, End::kFinished);
    }
    EXPECT_EQ(difference(outcome(folder), expected), "")
        << "stopped at " << limit;
  }
  EXPECT_GE(stops, 4);
}

class TranslationOnDevice : public luna::testing::DeviceTest {
 protected:
  /// Softmax has kernels for packed sequences in bfloat16 alone.
  static TrainConfig packed_config(const std::string& attention) {
    TrainConfig config = tiny_translation_config(attention);
    config.pack = "on";
    if (attention == "softmax") config.autocast = "bf16";
    return config;
  }
};

TEST_P(TranslationOnDevice, PackedItGoesOnToTheSameBits) {
  const auto splits = tiny_translation(20, 5);
  for (const char* attention : {"softmax", "nested", "universal"}) {
    const TrainConfig config = packed_config(attention);
    const std::string whole = fresh_folder("mt-packed"),
                      cut = fresh_folder("mt-packed-cut");
    std::vector<std::string> warnings;
    const auto note = [&](const std::string& why) { warnings.push_back(why); };
    train(config, splits, {.folder = whole, .device = device()},
          {.warn = note});
    TrainOptions parts{.folder = cut, .device = device()};
    for (const int64_t last : {1, 5, 100}) {
      int64_t step = 0;
      train(config, splits, parts,
            {.progress = [&](const Progress& p) { step = p.step; },
             .warn = note,
             .stop = [&] { return step >= last; }});
      parts.resume = true;
    }
    EXPECT_EQ(difference(outcome(cut), outcome(whole)), "") << attention;
    EXPECT_EQ(warnings, std::vector<std::string>{}) << attention;
  }
}

TEST_P(TranslationOnDevice, PackedItLearnsAsTheCpuDoes) {
  const auto splits = tiny_translation(20, 5);
  for (const char* attention : {"nested", "universal", "linear", "rff"}) {
    TrainConfig config = packed_config(attention);
    config.model.dropout = 0;
    std::vector<std::vector<double>> losses;
    for (const c10::Device& where : {device(), c10::Device(c10::kCPU)}) {
      const std::string folder = fresh_folder("mt-packed-device");
      train(config, splits, {.folder = folder, .device = where});
      std::istringstream lines(io::read_text(RunFolder(folder).metrics()));
      losses.emplace_back();
      for (std::string line; std::getline(lines, line);) {
        losses.back().push_back(nlohmann::json::parse(line)["loss"]);
      }
    }
    ASSERT_GE(losses[0].size(), 4u);
    ASSERT_EQ(losses[0].size(), losses[1].size());
    // Denominators of rff come near 0, where rounding grows from step to step.
    const bool grows = std::string_view(attention) == "rff";
    const size_t compared = grows ? 4 : losses[0].size();
    for (size_t i = 0; i < compared; ++i) {
      EXPECT_NEAR(losses[0][i], losses[1][i], 2e-3) << attention << " " << i;
    }
  }
}

TEST_P(TranslationOnDevice, WhatCannotBePackedIsRefusedByName) {
  TrainConfig config = packed_config("rff");
  config.model.attention_options["gate"] = true;
  const auto splits = tiny_translation(20, 5);
  expect_error<c10::ValueError>(
      [&] {
        train(config, splits,
              {.folder = fresh_folder("mt-refused"), .device = device()});
      },
      {"pack = on", "rff attention with gate"});
  config.pack = "auto";
  const auto padded =
      train(config, splits,
            {.folder = fresh_folder("mt-padded"), .device = device()});
  EXPECT_EQ(padded.end, End::kFinished);
}

LUNA_EVERY_DEVICE(TranslationOnDevice);

TEST(Packs, WhereTheConfigSaysSoOrItPays) {
  TrainConfig config = tiny_translation_config("universal");
  const c10::Device cpu(c10::kCPU), gpu(c10::kCUDA, 0);
  EXPECT_TRUE(packs(config, gpu, "", true));
  EXPECT_FALSE(packs(config, gpu, "", false)) << "there is little padding";
  EXPECT_FALSE(packs(config, gpu, "a reason", true));
  EXPECT_FALSE(packs(config, cpu, "", true));
  config.model.attention = "softmax";
  EXPECT_FALSE(packs(config, gpu, "", true)) << "in float32";
  config.autocast = "bf16";
  EXPECT_TRUE(packs(config, gpu, "", true));
  config.pack = "off";
  EXPECT_FALSE(packs(config, gpu, "", true));
  config.pack = "on";
  EXPECT_TRUE(packs(config, cpu, "", false));
  expect_error<c10::ValueError>([&] { packs(config, cpu, "a reason", true); },
                                {"pack = on", "a reason"});
}

TEST(TranslationResume, RefusesAnotherVocabulary) {
  const TrainConfig config = tiny_translation_config("linear");
  const std::string folder = fresh_folder("mt-vocabulary");
  int64_t asked = 0;
  train(config, tiny_translation(20, 5), {.folder = folder},
        {.stop = [&] { return ++asked >= 3; }});
  // Other sentences, other merges; as many tokens.
  expect_error<c10::ValueError>(
      [&] {
        train(config, tiny_translation(6, 5),
              {.folder = folder, .resume = true});
      },
      {"tokenizer.json", "vocabulary"});
}

TEST(Averaging, IsTheMeanOfTheLastCheckpoints) {
  const TrainConfig config = tiny_translation_config("softmax");
  const std::string folder = fresh_folder("mt-averaged");
  train(config, tiny_translation(20, 5), {.folder = folder});
  const RunFolder run(folder);
  const auto averaged =
      io::Safetensors::open(run.averaged() + "/model.safetensors");
  std::map<std::string, at::Tensor> sums;
  for (const int64_t step : {4, 6, 8}) {
    const auto file =
        io::Safetensors::open(run.checkpoint(step) + "/model.safetensors");
    for (const auto& entry : file.entries()) {
      const auto value = file.tensor(entry.name).to(at::kDouble);
      auto [found, is_new] = sums.emplace(entry.name, value);
      if (!is_new) found->second = found->second + value;
    }
  }
  ASSERT_EQ(averaged.entries().size(), sums.size());
  bool moved = false;
  for (const auto& [name, sum] : sums) {
    EXPECT_TRUE(at::allclose(averaged.tensor(name).to(at::kDouble), sum / 3,
                             1e-6, 1e-9))
        << name;
    moved = moved || !at::allclose(averaged.tensor(name).to(at::kDouble),
                                   at::zeros({}, at::kDouble));
  }
  EXPECT_TRUE(moved);
  // It is what is loaded and tested.
  const auto model =
      load_best(run, config, tiny_translation(20, 5).train->info());
  EXPECT_TRUE(at::equal(model->named_parameters()["embedding.tokens.weight"],
                        averaged.tensor("embedding.tokens.weight")));
}

TEST(BestBy, LossTakesTheLowestAndMetricTheBest) {
  for (const std::string by : {"loss", "metric"}) {
    TrainConfig config = tiny_translation_config("linear");
    config.steps = 24;
    config.eval_every = 2;
    config.optimizer.lr = 0.05;  // restless, so that the last is not the best
    config.best_by = by;
    const std::string folder = fresh_folder("mt-best-" + by);
    const auto result =
        train(config, tiny_translation(20, 5), {.folder = folder});
    std::istringstream lines(io::read_text(RunFolder(folder).metrics()));
    int64_t best = -1;
    double lowest = 0, highest = -1;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json["kind"] != "validation") continue;
      const double loss = json["loss"], bleu = json["bleu"];
      const bool better = best < 0 || (by == "metric" && bleu > highest) ||
                          ((by == "loss" || bleu == highest) && loss < lowest);
      if (!better) continue;
      best = json["step"];
      lowest = loss;
      highest = bleu;
    }
    EXPECT_EQ(result.best.step, best) << by;
  }
}

TEST(BestBy, PatienceEndsTheRun) {
  for (const std::string by : {"loss", "metric"}) {
    TrainConfig config = tiny_translation_config("linear");
    config.optimizer.lr = 0;
    config.patience = 2;
    config.steps = 100;
    config.best_by = by;
    const auto result = train(config, tiny_translation(20, 5),
                              {.folder = fresh_folder("mt-patience")});
    EXPECT_EQ(result.end, End::kStoppedEarly);
    EXPECT_EQ(result.step, 12);
  }
}

// On a GPU batches have few shapes, packed a single one; what is learnt must
// not depend on it.
TEST(RunBatches, EveryLayoutGivesTheSameLossAndGradients) {
  for (const char* attention :
       {"softmax", "nested", "universal", "linear", "rff"}) {
    TrainConfig config = tiny_translation_config(attention);
    config.model.dropout = 0;
    const auto splits = tiny_translation(20, 5);
    at::manual_seed(1);
    auto model = std::make_shared<models::Translator>(
        config.model, splits.train->info().vocabulary);
    TrainStep step(model, config);
    const auto gradient = [&](const data::Batch& batch) {
      step.drop_gradients();
      model->train();
      const auto loss = step.accumulate(0, 0, batch);
      return std::pair(loss.item<double>(),
                       model->embedding->tokens->weight.grad().clone());
    };
    const auto expect_alike = [&](const data::Batch& a, const data::Batch& b) {
      SCOPED_TRACE(attention);
      EXPECT_EQ(b.indices, a.indices);
      ASSERT_TRUE(b.padded_labels);
      const auto [loss, grad] = gradient(a);
      const auto [same_loss, same_grad] = gradient(b);
      EXPECT_NEAR(same_loss, loss, 1e-5 * loss);
      EXPECT_TRUE(at::allclose(same_grad, grad, 1e-3, 1e-6));
    };
    RunBatches exact(*splits.train, config, {}, Layout::kPadded);
    RunBatches padded(*splits.train, config, {}, Layout::kFewShapes);
    RunBatches packed(*splits.train, config, {}, Layout::kPacked);
    const auto& pairs = *data::as_translation(*splits.train);
    std::set<std::vector<int64_t>> shapes;
    for (int64_t number = 0; number < 4; ++number) {
      const data::Batch b = padded.of_step(number).front();
      EXPECT_EQ(b.first.ids.size(1), data::bucket_length(b.first.ids.size(1)));
      EXPECT_EQ(b.first.ids.sizes(), b.second->ids.sizes());
      expect_alike(exact.of_step(number).front(), b);
      const data::Batch c = packed.of_step(number).front();
      shapes.insert({c.first.ids.size(1), c.second->ids.size(1),
                     c.first.packed->sequences()});
      expect_alike(data::make_translation_batch(pairs.pairs(), c.indices,
                                                pairs.specials()),
                   c);
    }
    EXPECT_EQ(shapes.size(), 1u);
  }
}

class RunBatchesOf : public ::testing::TestWithParam<Layout> {};

TEST_P(RunBatchesOf, EveryEpochHoldsEveryPairOnce) {
  const TrainConfig config = tiny_translation_config("softmax");
  const auto splits = tiny_translation(20, 5);
  RunBatches batches(*splits.train, config, {}, GetParam());
  const int64_t epoch = batches.steps_in_epoch();
  ASSERT_GT(epoch, 2);
  std::vector<std::vector<int64_t>> seen;
  for (int64_t e = 0; e < 2; ++e) {
    std::vector<int64_t> pairs;
    for (int64_t i = 0; i < epoch; ++i) {
      const auto batch = batches.of_step(e * epoch + i).front();
      pairs.insert(pairs.end(), batch.indices.begin(), batch.indices.end());
    }
    seen.push_back(pairs);
    std::ranges::sort(pairs);
    ASSERT_EQ(std::ssize(pairs), 20);
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(pairs[i], i);
  }
  EXPECT_NE(seen[0], seen[1]);
  // A resumed run asks for a step in the middle.
  RunBatches resumed(*splits.train, config, {}, GetParam());
  EXPECT_EQ(resumed.of_step(epoch + 1).front().indices,
            batches.of_step(epoch + 1).front().indices);
}
INSTANTIATE_TEST_SUITE_P(All, RunBatchesOf,
                         ::testing::Values(Layout::kPadded, Layout::kFewShapes,
                                           Layout::kPacked));

std::vector<std::vector<int32_t>> sources_of(
    const data::TranslationDataset& data) {
  std::vector<std::vector<int32_t>> sentences;
  for (int64_t i = 0; i < data.size(); ++i) {
    const auto source = data.pairs()[i].source;
    sentences.emplace_back(source.begin(), source.end());
  }
  return sentences;
}

TEST(Translate, DoesNotDependOnTheBatchAndKeepsTheOrder) {
  const auto splits = tiny_translation(20, 5);
  const auto& data = *data::as_translation(*splits.train);
  const auto sentences = sources_of(data);
  for (const char* attention :
       {"softmax", "nested", "universal", "linear", "rff"}) {
    at::manual_seed(2);
    models::Translator model(tiny_translation_config(attention).model,
                             data.info().vocabulary);
    model.to(at::kDouble);  // in which rounding turns no choice
    const models::BeamOptions search{.beam = 3, .n_best = 2};
    const auto together = translate(model, data.specials(), sentences,
                                    {.search = search, .batch = 64});
    const auto alone = translate(model, data.specials(), sentences,
                                 {.search = search, .batch = 1});
    for (size_t i = 0; i < sentences.size(); ++i) {
      for (int n = 0; n < 2; ++n) {
        EXPECT_EQ(together->at(i).at(n).ids, alone->at(i).at(n).ids)
            << attention << " " << i;
        EXPECT_NEAR(together->at(i).at(n).score, alone->at(i).at(n).score,
                    1e-9);
      }
    }
  }
}

class TranslateOnDevice : public luna::testing::DeviceTest {};

// A run's validations and test, and luna translate behind it.
TEST_P(TranslateOnDevice, SaysWhatTheCpuSays) {
  const auto splits = tiny_translation(24, 24);
  const auto& data = *data::as_translation(*splits.test);
  for (const char* attention : {"softmax", "nested", "universal"}) {
    SCOPED_TRACE(attention);
    TrainConfig config = tiny_translation_config(attention);
    config.steps = 60;
    config.eval_every = 20;
    const std::string folder = fresh_folder("mt-device");
    const auto result =
        train(config, splits, {.folder = folder, .device = device()});
    ASSERT_TRUE(result.test);
    const OpenTranslator open = open_translator(folder);
    open.model->to(at::kDouble);  // in which rounding turns no choice
    const auto lines = [&](int64_t beam) {
      std::vector<std::string> said;
      const auto found = translate(*open.model, open.specials, sources_of(data),
                                   {.search = {.beam = beam}, .batch = 10});
      for (const Hypotheses& best : *found) {
        said.push_back(line_of(open.tokenizer, best.front()));
      }
      return said;
    };
    const auto greedy = lines(1), wide = lines(3);
    open.model->to(device());
    EXPECT_EQ(lines(1), greedy);
    EXPECT_EQ(lines(3), wide);
    open.model->to(at::kFloat);
    EXPECT_NEAR(evaluate(*open.model, data,
                         {.batch = config.batch,
                          .beam = config.translation.beam,
                          .length_penalty = config.translation.length_penalty})
                    ->score,
                result.test->score, 1e-9);
  }
}
LUNA_EVERY_DEVICE(TranslateOnDevice);

TEST(Translate, LinesAreWholeLinesOfUtf8) {
  const text::Bpe bytes = text::BpeLearner().learn({.merges = 0});
  const auto line = [&](const std::string& text) {
    const auto ids = bytes.encode(text);
    return line_of(bytes, {.ids = {ids.begin(), ids.end()}});
  };
  EXPECT_EQ(line("a\nb\r\nc"), "a b  c");
  EXPECT_EQ(line("\xC3\xA4\xC3"), "\xC3\xA4\xEF\xBF\xBD");
  EXPECT_EQ(line(""), "");
}

TEST(OpenTranslator, SaysWhatIsWrong) {
  const TrainConfig config = tiny_translation_config("softmax");
  const std::string folder = fresh_folder("mt-open");
  train(config, tiny_translation(20, 5), {.folder = folder});
  text::BpeLearner().learn({.merges = 0}).save(RunFolder(folder).tokenizer());
  expect_error<c10::Error>([&] { open_translator(folder); },
                           {"model.safetensors", "embedding.tokens.weight"});
}

}  // namespace
}  // namespace luna::train
