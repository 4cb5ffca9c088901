#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/models/beam_search.h>

#include <set>

#include "models/small_translator.h"
#include "support/device.h"
#include "support/errors.h"

namespace luna::models {
namespace {

using luna::testing::expect_error;
using luna::testing::make_translator;
using luna::testing::random_sequences;
using luna::testing::small_translator;

constexpr int64_t kVocabulary = luna::testing::kSmallVocabulary;

data::Batch batch_of(const std::vector<int64_t>& sources,
                     const std::vector<int64_t>& targets) {
  return {.first = random_sequences(sources, 1),
          .second = random_sequences(targets, 2),
          .labels = at::Tensor()};
}

class TranslatorTest
    : public ::testing::TestWithParam<luna::testing::TranslatorKind> {
 protected:
  ModelConfig config() const { return GetParam().config(); }
};

// The paper's counts (SPEC, section 2).
TEST(TranslatorCounts, AreThoseOfThePaper) {
  const auto count = [](const std::string& attention, bool tied, int64_t l,
                        int64_t vocabulary) {
    ModelConfig config = small_translator(attention, "post");
    config.layers = 6;
    config.width = 512;
    config.ffn = 2048;
    config.heads = 8;
    config.memory_length = l;
    config.init = "torch";
    if (attention == "nested") config.attention_options["tied"] = tied;
    int64_t sum = 0;
    for (const auto& p : Translator(config, vocabulary).parameters()) {
      sum += p.numel();
    }
    return sum;
  };
  const int64_t v = 100;
  EXPECT_EQ(count("softmax", false, 1, v), 44'138'496 + 512 * v);
  for (const int64_t l : {16, 32}) {
    EXPECT_EQ(count("nested", true, l, v), 48'878'592 + 512 * l + 512 * v);
    EXPECT_EQ(count("nested", false, l, v), 56'758'272 + 512 * l + 512 * v);
  }
}

/// The largest difference between log-probabilities of steps and of forward.
double difference_of_steps(Translator& model) {
  const at::NoGradGuard no_grad;
  // Shorter and longer than the memory.
  const auto batch = batch_of({5, 2, 9}, {7, 7, 7});
  const auto wanted =
      at::log_softmax(model.forward(batch), -1).view({3, 7, kVocabulary});
  auto state = model.start(batch.first);
  double most = 0;
  for (int64_t t = 0; t < 7; ++t) {
    const auto got =
        at::log_softmax(model.step(batch.second->ids.select(1, t), state), -1);
    most =
        std::max(most, (got - wanted.select(1, t)).abs().max().item<double>());
  }
  return most;
}

TEST_P(TranslatorTest, StepsGiveWhatForwardGives) {
  const auto model = make_translator(config());
  EXPECT_LT(difference_of_steps(*model), 1e-9);
  model->to(at::kFloat);
  // rff divides by a sum of cosines, which may be close to 0: its rounding
  // has no such bound, but where unit vectors keep it away from 0.
  if (GetParam().attention == "rff" && GetParam().variant.empty()) return;
  EXPECT_LT(difference_of_steps(*model), 1e-4);
}

class TranslatorOnDevice : public luna::testing::DeviceTest {};

// In bfloat16, in which a GPU has kernels of its own for a step: few rows and
// more than those take.
TEST_P(TranslatorOnDevice, StepsInBfloat16AreThoseOfTheCpu) {
  const at::NoGradGuard no_grad;
  for (const char* attention : {"softmax", "universal", "nested", "linear"}) {
    for (const int64_t rows : {3, 40, 70}) {
      SCOPED_TRACE(::testing::Message() << attention << ", " << rows);
      ModelConfig config = small_translator(attention, "pre");
      config.width = 128;
      config.ffn = 256;
      config.heads = 2;
      const auto model = make_translator(config);
      model->to(at::kBFloat16);  // rounded once, for both
      model->to(at::kFloat);
      const auto source = random_sequences(std::vector<int64_t>(rows, 9), 1);
      const auto ids = random_sequences(std::vector<int64_t>(rows, 5), 2).ids;
      const auto run = [&](const c10::Device& device, at::ScalarType dtype) {
        model->to(device, dtype);
        auto moved = source;
        moved.ids = moved.ids.to(device);
        moved.lengths = moved.lengths.to(device);
        auto state = model->start(moved);
        std::vector<at::Tensor> logits;
        for (int64_t t = 0; t < 5; ++t) {
          logits.push_back(model->step(ids.select(1, t).to(device), state)
                               .to(at::kCPU, at::kFloat));
        }
        return at::stack(logits);
      };
      const auto wanted = run(at::kCPU, at::kFloat);
      const auto got = run(device(), at::kBFloat16);
      EXPECT_LT(((got - wanted).norm() / wanted.norm()).item<double>(), 3e-2);
    }
  }
}

LUNA_EVERY_DEVICE(TranslatorOnDevice);

// The decoder's own tokens by the mechanism, the source by softmax.
TEST(SourceAttention, IsThatOfAnotherMechanism) {
  auto config = small_translator("universal", "pre");
  config.attention_dropout = 0.1;
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& entry : Translator(config, kVocabulary).named_parameters())
      all.insert(entry.key());
    return all;
  };
  const std::string map = ".feature_map.projection";
  EXPECT_EQ(names().count("decoder.0.cross_attention" + map), 1);
  config.source_attention = "softmax";
  EXPECT_EQ(names().count("decoder.0.cross_attention" + map), 0);
  EXPECT_EQ(names().count("decoder.0.self_attention" + map), 1);
}

TEST_P(TranslatorTest, TheFutureAndThePaddingAreNotSeen) {
  const at::NoGradGuard no_grad;
  const auto model = make_translator(config());
  const auto batch = batch_of({4, 9}, {6, 3});
  const auto logits = model->forward(batch);
  ASSERT_EQ(logits.sizes(), (at::IntArrayRef{6 + 3, kVocabulary}));
  // Another last token of the first target: what came before stays.
  auto other = batch;
  other.second->ids = batch.second->ids.clone();
  other.second->ids[0][5] = 3 + (other.second->ids[0][5] - 2) % 8;
  const auto changed = model->forward(other);
  EXPECT_TRUE(at::allclose(changed.narrow(0, 0, 5), logits.narrow(0, 0, 5)));
  EXPECT_FALSE(at::allclose(changed[5], logits[5]));
  // The first pair alone.
  auto alone = batch;
  alone.first = {batch.first.ids.slice(0, 0, 1).slice(1, 0, 4), at::tensor({4}),
                 true};
  alone.second = {batch.second->ids.slice(0, 0, 1), at::tensor({6}), true};
  EXPECT_TRUE(
      at::allclose(model->forward(alone), logits.narrow(0, 0, 6), 1e-4, 1e-5));
  // The source is read.
  alone.first.ids = (alone.first.ids - 2).remainder(8) + 3;
  EXPECT_FALSE(at::allclose(model->forward(alone), logits.narrow(0, 0, 6)));
}

TEST_P(TranslatorTest, EveryParameterLearns) {
  auto model = make_translator(config());
  model->train();
  const auto batch = batch_of({5, 9}, {6, 6});
  model->forward(batch).square().mean().backward();
  for (const auto& p : model->named_parameters()) {
    // Nothing reads the memory behind the last layer, or behind any where it
    // is not contextual.
    const bool behind = p.key().starts_with("decoder.1.memory_norm") ||
                        (GetParam().variant == "noncontextual" &&
                         p.key().find("memory_norm") != std::string::npos);
    if (behind && GetParam().norm == "post") continue;
    // A key's bias moves all of softmax's scores alike.
    if (p.key().ends_with("k_proj.bias") || p.key().ends_with("c_proj.bias") ||
        p.key().ends_with("pc_proj.bias")) {
      continue;
    }
    EXPECT_TRUE(p.value().grad().defined() &&
                p.value().grad().abs().sum().item<double>() > 0)
        << p.key();
  }
}

TEST_P(TranslatorTest, StateIsConstantInLengthButForSoftmax) {
  const at::NoGradGuard no_grad;
  const auto model = make_translator(config());
  auto state = model->start(random_sequences({5, 5}, 1));
  const auto ids = at::full({2}, 4, at::kLong);
  model->step(ids, state);
  const auto bytes = state.bytes();
  for (int i = 0; i < 70; ++i) model->step(ids, state);
  if (GetParam().attention == "softmax") {
    EXPECT_GT(state.bytes(), bytes);
  } else {
    EXPECT_EQ(state.bytes(), bytes);
  }
}

TEST_P(TranslatorTest, BeamOfOneIsGreedy) {
  const at::NoGradGuard no_grad;
  const auto model = make_translator(config());
  const auto source = random_sequences({5, 2, 9}, 4);
  BeamOptions options{.beam = 1, .max_ratio = 1, .max_extra = 3};
  const auto found = beam_search(*model, source, options);
  for (int64_t i = 0; i < 3; ++i) {
    const auto length = source.lengths[i].item<int64_t>();
    auto state =
        model->start({source.ids.slice(0, i, i + 1).slice(1, 0, length),
                      at::tensor({length}), true});
    std::vector<int64_t> wanted;
    int64_t token = options.start;
    while (std::ssize(wanted) < length + 3) {
      token = model->step(at::tensor({token}), state).argmax(1).item<int64_t>();
      if (token == options.end) break;
      wanted.push_back(token);
    }
    EXPECT_EQ(found[i].at(0).ids, wanted) << i;
  }
}

/// Log-probability of ids and the end, by forward.
double score_of(Translator& model, const data::Sequences& source,
                const std::vector<int64_t>& ids, const BeamOptions& options) {
  std::vector<int64_t> read{options.start}, said = ids;
  read.insert(read.end(), ids.begin(), ids.end());
  said.push_back(options.end);
  const auto logits = model.forward(
      {.first = source,
       .second = data::Sequences{at::tensor(read).unsqueeze(0),
                                 at::tensor({std::ssize(read)}), true},
       .labels = at::Tensor()});
  const auto chosen = at::log_softmax(logits.to(at::kDouble), 1)
                          .gather(1, at::tensor(said).unsqueeze(1));
  return chosen.sum().item<double>() /
         std::pow(static_cast<double>(said.size()), options.length_penalty);
}

TEST_P(TranslatorTest, AWideBeamFindsWhatExhaustiveSearchFinds) {
  const at::NoGradGuard no_grad;
  at::manual_seed(5);
  constexpr int64_t kWords = 4;  // 0: <pad>, 1: <s>, 2: </s>, 3: a word
  auto model = std::make_shared<Translator>(config(), kWords);
  model->to(at::kDouble);
  model->eval();
  const data::Sequences source{at::tensor({3, 3, 2}).unsqueeze(0),
                               at::tensor({3}), true};
  // At most three tokens: 1 + 3 + 9 + 27 sentences, as only </s> ends one.
  const BeamOptions options{.beam = 100,
                            .length_penalty = 0.7,
                            .n_best = 100,
                            .max_ratio = 0,
                            .max_extra = 3};
  const auto found = beam_search(*model, source, options).at(0);
  std::vector<std::pair<double, std::vector<int64_t>>> all;
  std::vector<std::vector<int64_t>> grown{{}};
  for (int length = 0; length <= 3; ++length) {
    std::vector<std::vector<int64_t>> next;
    for (const auto& ids : grown) {
      all.emplace_back(score_of(*model, source, ids, options), ids);
      for (const int64_t token : {0, 1, 3}) {
        next.push_back(ids);
        next.back().push_back(token);
      }
    }
    grown = std::move(next);
  }
  std::ranges::sort(all, std::greater{});
  ASSERT_EQ(found.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_NEAR(found[i].score, all[i].first, 1e-9) << i;
  }
  EXPECT_EQ(found[0].ids, all[0].second);
}

TEST_P(TranslatorTest, NoNgramIsSaidTwice) {
  const auto model = make_translator(config());
  const auto source = random_sequences({5, 9}, 4);
  const auto twice = [&](int64_t n) {
    const BeamOptions options{
        .beam = 2, .max_ratio = 0, .max_extra = 30, .end = 0};
    auto limited = options;
    limited.no_repeat_ngram = n;
    bool found = false;
    for (const auto& best : beam_search(*model, source, limited)) {
      const auto& ids = best.at(0).ids;
      std::set<std::vector<int64_t>> seen;
      for (auto at = ids.begin(); at + 2 <= ids.end(); ++at) {
        found = found || !seen.insert({at, at + 2}).second;
      }
    }
    return found;
  };
  EXPECT_TRUE(twice(0));
  EXPECT_FALSE(twice(2));
}

TEST(MemoryAttention, IsAShareOfEachPositionOfTheSource) {
  const at::NoGradGuard no_grad;
  for (const char* norm : {"pre", "post"}) {
    const auto model = make_translator(small_translator("nested", norm));
    const auto map = model->memory_attention(random_sequences({2, 9}, 4));
    ASSERT_TRUE(map);
    ASSERT_EQ(map->sizes(), (at::IntArrayRef{2, 4, 9}));
    // A source of two tokens uses two rows of the memory.
    const auto sums = map->sum(2);
    EXPECT_TRUE(at::allclose(
        sums, at::tensor({1., 1., 0., 0., 1., 1., 1., 1.}).view({2, 4})));
    EXPECT_EQ((*map)[0].slice(1, 2).abs().max().item<double>(), 0);
    // What the last layer packs, by its own formula, is the map times values:
    // the rows differ, so the map does say something.
    EXPECT_GT((map->select(0, 1)[0] - map->select(0, 1)[1])
                  .abs()
                  .max()
                  .item<double>(),
              1e-3);
  }
  const auto softmax = make_translator(small_translator("softmax", "pre"));
  EXPECT_FALSE(softmax->memory_attention(random_sequences({3}, 4)));
}

INSTANTIATE_TEST_SUITE_P(All, TranslatorTest,
                         ::testing::ValuesIn(luna::testing::translator_kinds()),
                         ::testing::PrintToStringParamName());

TEST(Translator, RefusesWhatItCannotDo) {
  auto config = small_translator("nested", "post");
  config.positions = "learned";
  expect_error<c10::ValueError>([&] { Translator(config, kVocabulary); },
                                {"positions", "sinusoidal", "learned"});
  config = small_translator("nested", "post");
  config.source_attention = "softmax";
  expect_error<c10::ValueError>([&] { Translator(config, kVocabulary); },
                                {"source_attention", "same", "nested"});
  config = small_translator("universal", "post");
  config.attention_options["ch_rms"] = true;
  auto model = make_translator(config);
  expect_error<c10::ValueError>([&] { model->forward(batch_of({3}, {3})); },
                                {"ch_rms", "causal"});
  model = make_translator(small_translator("linear", "post"));
  expect_error<c10::ValueError>([&] { model->forward({}); }, {"target"});
  auto state = [&] {
    const at::NoGradGuard no_grad;
    return model->start(random_sequences({3}, 1));
  }();
  expect_error<c10::ValueError>([&] { model->step(at::tensor({3}), state); },
                                {"no gradients"});
  expect_error<c10::ValueError>(
      [&] { beam_search(*model, random_sequences({3}, 1), {.beam = 0}); },
      {"beam", "got 0"});
  expect_error<c10::ValueError>(
      [&] {
        beam_search(*model, random_sequences({3}, 1), {.beam = 2, .n_best = 3});
      },
      {"n_best", "got 3"});
}

}  // namespace
}  // namespace luna::models
