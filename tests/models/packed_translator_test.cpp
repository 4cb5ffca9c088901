// Pairs one after the other, with empty ones and a filler behind them, give
// what padded ones give: logits and gradients, for every mechanism.

#include <ATen/ATen.h>
#include <luna/models/translator.h>
#include <luna/nn/attention_registry.h>

#include "models/packed_models.h"
#include "support/device.h"
#include "support/errors.h"

namespace luna::models::testing {
namespace {

using luna::testing::DeviceTest;
using luna::testing::expect_error;

ModelConfig translator_config(const std::string& attention,
                              const std::string& norm = "pre") {
  auto config = small_config(attention);
  config.norm = norm;
  config.positions = "sinusoidal";
  return config;
}

std::shared_ptr<Translator> random_translator(const ModelConfig& config) {
  at::manual_seed(3);  // of buffers
  auto model = std::make_shared<Translator>(config, kVocabulary);
  make_random(*model);
  return model;
}

/// Random ids in rows as long as the longest.
data::Sequences ids_of(const std::vector<int64_t>& lengths, uint64_t seed) {
  auto made = sequences(lengths, *std::ranges::max_element(lengths), seed);
  made.ids.clamp_max_(kVocabulary - 1);
  return made;
}

data::Batch pairs(const std::vector<int64_t>& sources,
                  const std::vector<int64_t>& targets) {
  data::Batch batch{.first = ids_of(sources, 1),
                    .second = ids_of(targets, 2),
                    .labels = at::Tensor()};
  batch.labels = Random(3)
                     .uniform({batch.second->lengths.sum().item<int64_t>()}, 0,
                              kVocabulary)
                     .to(at::kLong);
  return batch;
}

/// Behind the pairs.
struct Extra {
  int64_t empty = 0, source_filler = 1, target_filler = 1;
};

data::Batch packed(const data::Batch& padded, const Extra& extra) {
  const auto side = [&](const data::Sequences& sequences, int64_t filler) {
    return testing::packed(sequences, filler, extra.empty, /*pad=*/0);
  };
  return {.first = side(padded.first, extra.source_filler),
          .second = side(*padded.second, extra.target_filler),
          .labels = at::constant_pad_nd(padded.labels, {0, extra.target_filler},
                                        data::kNoLabel),
          .padded_labels = true};
}

/// A mechanism in a form of its own.
struct Form {
  std::string name;
  ModelConfig config;
};
void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }

std::vector<Form> forms() {
  std::vector<Form> all;
  for (const char* norm : {"pre", "post"}) {
    for (const auto& info : nn::attentions()) {
      all.push_back({info.name, translator_config(info.name, norm)});
    }
    const auto nested = [&](const std::string& name) -> ModelConfig& {
      all.push_back({"nested_" + name, translator_config("nested", norm)});
      return all.back().config;
    };
    nested("untied").attention_options["tied"] = false;
    nested("whole_memory").attention_options["dynamic_projection"] = false;
    auto& own = nested("noncontextual");
    own.contextual_memory = false;
    own.memory_length = 11;  // more rows than the longest has tokens
    all.push_back({"universal_source", translator_config("universal", norm)});
    all.back().config.source_attention = "softmax";
    all.push_back({"rff_unit", translator_config("rff", norm)});
    all.back().config.attention_options["unit"] = true;
    for (auto& form : all) {
      if (form.config.norm == norm) form.name += std::string("_") + norm;
    }
  }
  return all;
}

class EveryPackedTranslator : public ::testing::TestWithParam<Form> {};

// The memory has 4 rows: sources of 1 and 3 use a part of it.
TEST_P(EveryPackedTranslator, IsAsGoodAsPadded) {
  const auto model = random_translator(GetParam().config);
  const auto batch = pairs({9, 1, 6, 3, 5}, {4, 7, 1, 3, 1});
  const auto expected = learn(*model, batch);
  for (const Extra& extra : {Extra{}, Extra{.empty = 2, .source_filler = 5},
                             Extra{.empty = 1, .target_filler = 20}}) {
    SCOPED_TRACE(extra.empty);
    expect_alike(learn(*model, packed(batch, extra)), expected);
  }
}

TEST_P(EveryPackedTranslator, NobodyReadsTheFiller) {
  const auto model = random_translator(GetParam().config);
  auto batch = packed(pairs({4, 9}, {6, 2}), {1, 7, 8});
  const auto expected = learn(*model, batch);
  batch.first.ids.narrow(1, 4 + 9, 7).fill_(2);
  batch.second->ids.narrow(1, 6 + 2, 8).fill_(3);
  expect_alike(learn(*model, batch), expected, 0.0);
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryPackedTranslator,
                         ::testing::ValuesIn(forms()),
                         ::testing::PrintToStringParamName());

TEST(PackedTranslator, DropsWhileTraining) {
  for (const auto& info : nn::attentions()) {
    SCOPED_TRACE(info.name);
    auto config = translator_config(info.name);
    config.dropout = config.attention_dropout = 0.2;
    const auto model = random_translator(config);
    const auto batch = packed(pairs({9, 4, 1}, {2, 5, 7}), {1, 4, 4});
    expect_drops(*model, batch);
  }
}

TEST(PackedTranslator, SaysWhatCannotBePacked) {
  auto config = translator_config("rff");
  EXPECT_EQ(random_translator(config)->refuses_packed(), "");
  config.attention_options["gate"] = true;
  EXPECT_EQ(random_translator(config)->refuses_packed(),
            "rff attention with gate");
}

TEST(PackedTranslator, BothSidesHaveTheSamePairs) {
  const auto model = random_translator(translator_config("linear"));
  const auto batch = pairs({4, 9}, {6, 2});
  auto mixed = packed(batch, {});
  mixed.first = testing::packed(batch.first, 1, 1);
  expect_error<c10::ValueError>([&] { model->forward(mixed); },
                                {"packed sequences", "4, got 3"});
  mixed.first = batch.first;
  expect_error<c10::ValueError>([&] { model->forward(mixed); },
                                {"packed sequences", "0, got 3"});
  expect_error<c10::ValueError>([&] { model->start(packed(batch, {}).first); },
                                {"Translator::start", "padded"});
}

class PackedTranslatorOnDevice : public DeviceTest {};

// float32; widths of heads that the fused kernels of a GPU take.
TEST_P(PackedTranslatorOnDevice, IsAsGoodAsPadded) {
  for (auto form : forms()) {
    SCOPED_TRACE(form.name);
    form.config.width = 24;
    const auto model = random_translator(form.config);
    model->to(at::kFloat);
    const auto batch = pairs({9, 1, 6, 3}, {4, 7, 1, 3});
    const auto expected = learn(*model, batch);
    model->to(device());
    expect_alike(learn(*model, packed(batch, {2, 7, 20})), expected, 1e-4);
  }
}

LUNA_EVERY_DEVICE(PackedTranslatorOnDevice);

}  // namespace
}  // namespace luna::models::testing
