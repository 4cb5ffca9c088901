// Sequences one after the other, with a filler behind them, give what padded
// ones give: logits and gradients, for every mechanism in every kind of model.

#include <luna/models/classifier.h>
#include <luna/nn/feature_map.h>

#include "models/packed_models.h"
#include "ops/embed.h"
#include "support/device.h"
#include "support/errors.h"

namespace luna::models::testing {
namespace {

using luna::testing::DeviceTest;

data::Batch packed(const data::Batch& padded, int64_t filler) {
  data::Batch batch = padded;
  batch.first = testing::packed(padded.first, filler);
  if (padded.second) batch.second = testing::packed(*padded.second, filler);
  return batch;
}

// Longer than there are positions: the filler's must not be read.
constexpr int64_t kLongFiller = 20;

class EveryPacked : public ::testing::TestWithParam<Kind> {};

// The memory has 4 rows: sequences of 1 and 3 use a part of it.
TEST_P(EveryPacked, IsAsGoodAsPadded) {
  const auto model = random_model(config_of(GetParam()));
  const auto batch = batch_of(sequences({9, 1, 6, 3}, 9));
  const auto expected = learn(*model, batch);
  for (const int64_t filler : {int64_t{0}, int64_t{5}, kLongFiller}) {
    SCOPED_TRACE(filler);
    expect_alike(learn(*model, packed(batch, filler)), expected);
  }
}

TEST_P(EveryPacked, IsAsGoodAsPaddedInTheOtherForm) {
  auto config = config_of(GetParam());
  config.positions = "sinusoidal";
  config.embedding_norm = true;
  // A memory of each layer cannot be pooled.
  config.contextual_memory = config.pooling == "memory";
  config.memory_length = 11;
  config.head = "mlp";
  config.head_hidden = 5;
  const auto model = random_model(config);
  const auto batch = batch_of(sequences({2, 9, 4}, 9));
  expect_alike(learn(*model, packed(batch, 7)), learn(*model, batch));
}

TEST_P(EveryPacked, NobodyReadsTheFiller) {
  const auto model = random_model(config_of(GetParam()));
  auto batch = packed(batch_of(sequences({4, 9}, 9)), kLongFiller);
  const auto expected = learn(*model, batch);
  batch.first.ids = batch.first.ids.clone();
  batch.first.ids.narrow(1, 13, kLongFiller).fill_(1);
  const auto actual = learn(*model, batch);
  EXPECT_TRUE(at::equal(actual.logits, expected.logits));
  expect_alike(actual, expected, 0.0);
}

/// Pictures of 9, 2, 0 and 5 pixels that are not black, black between them,
/// with room for a filler; and without room, so that nothing is left out.
std::pair<data::Batch, data::Batch> seen_and_all(const ModelConfig& config,
                                                 int64_t filler) {
  data::Batch all = batch_of(sequences({9, 9, 9, 9}, 9));
  all.first.full = true;
  all.first.ids.clamp_min_(1);
  for (const int64_t pixel : {0, 1, 2, 4, 5, 7, 8}) {
    all.first.ids[1][pixel] = 0;
    if (pixel % 2 == 0) all.first.ids[3][pixel] = 0;
  }
  all.first.ids[3][6] = 1;
  all.first.ids[2].zero_();
  data::Batch seen = all;
  const int64_t pixels = all.first.ids.ne(0).sum().item<int64_t>();
  if (config.pooling == "cls") {
    // Data put it in front.
    for (data::Batch* batch : {&all, &seen}) {
      auto& first = batch->first;
      first.ids = at::cat(
          {at::full({4, 1}, data::cls_id(small_pictures())), first.ids}, 1);
      first.lengths = first.lengths + 1;
    }
  }
  seen.first.room = {pixels + (config.pooling == "cls" ? 4 : 0) + filler,
                     filler};
  return {seen, all};
}

/// Universal attention sees no more tokens than there is room for.
void expect_left_out(Model& model, const data::Batch& seen) {
  for (const auto& module : model.modules()) {
    auto* const map = dynamic_cast<nn::FeatureMapImpl*>(module.get());
    if (map == nullptr) continue;
    int64_t asked = 0;
    map->watch = [&](const at::Tensor&, const at::Tensor& key,
                     const nn::AttendOptions&) { asked = key.size(2); };
    model.forward(seen);
    map->watch = nullptr;
    EXPECT_EQ(asked, seen.first.room->tokens);
  }
}

TEST_P(EveryPacked, BlackThatIsPaddingMayBeLeftOut) {
  auto config = config_of(GetParam());
  config.black = "padding";
  for (const int64_t memory : {4, 11}) {
    for (const bool embedding_norm : {false, true}) {
      config.memory_length = memory;
      config.embedding_norm = embedding_norm;
      const auto model = random_model(config, small_pictures());
      for (const int64_t filler : {int64_t{0}, int64_t{5}, kLongFiller}) {
        SCOPED_TRACE(filler);
        const auto [seen, all] = seen_and_all(config, filler);
        expect_alike(learn(*model, seen), learn(*model, all));
        expect_left_out(*model, seen);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryPacked,
                         ::testing::ValuesIn(all_kinds()), name_of);

TEST(PackedSequences, AMemoryOfFixedLengthIsThere) {
  auto config = config_of({"nested", "post", "memory"});
  config.attention_options = {{"dynamic_projection", false}};
  const auto model = random_model(config);
  const auto batch = batch_of(sequences({2, 9, 1}, 9));
  expect_alike(learn(*model, packed(batch, 3)), learn(*model, batch));
}

TEST(PackedSequences, AnEmptySequenceIsOne) {
  for (const auto& info : nn::attentions()) {
    SCOPED_TRACE(info.name);
    const auto model = random_model(small_config(info.name));
    const auto batch = batch_of(sequences({3, 0, 5, 0}, 5));
    expect_alike(learn(*model, packed(batch, 2)), learn(*model, batch));
  }
}

TEST(PackedSequences, PairsToo) {
  for (const auto& info : nn::attentions()) {
    SCOPED_TRACE(info.name);
    const auto model = random_model(small_config(info.name), true);
    auto batch = batch_of(sequences({9, 4, 1}, 9, 1));
    batch.second = sequences({2, 6, 6}, 6, 2);
    expect_alike(learn(*model, packed(batch, 4)), learn(*model, batch));
  }
}

TEST(PackedSequences, DropsWhileTrainingAlone) {
  for (const auto& info : nn::attentions()) {
    SCOPED_TRACE(info.name);
    auto config = small_config(info.name);
    config.dropout = config.attention_dropout = 0.2;
    const auto model = random_model(config);
    const auto batch = packed(batch_of(sequences({9, 4, 1}, 9)), 4);
    expect_drops(*model, batch);
  }
}

TEST(PackedSequences, PlacesAreCountedFromEachStart) {
  // Sequences of 3, 0, 2 and 1, a filler of 2
  const auto starts = at::tensor({0, 3, 3, 5, 6, 8}, at::kLong);
  EXPECT_TRUE(at::equal(ops::places_of(starts, 8),
                        at::tensor({0, 1, 2, 0, 1, 0, 0, 0}, at::kLong)));
}

TEST(PackedSequences, ASequenceBeyondThePositionsIsRefused) {
  const auto model = random_model(small_config("universal"));
  luna::testing::expect_error<c10::Error>(
      [&] { model->forward(packed(batch_of(sequences({12}, 12)), 0)); },
      {"out of range"});
}

TEST(PackedSequences, StatisticsOfAllRowsRefuseIt) {
  auto config = small_config("universal");
  EXPECT_EQ(random_model(config)->refuses_packed(), "");
  config.attention_options = {{"ch_rms", true}};
  EXPECT_NE(random_model(config)->refuses_packed().find("ch_rms"),
            std::string::npos);
}

class PackedOnDevice : public DeviceTest {};

// float32, and widths that the fused kernels of a GPU take.
TEST_P(PackedOnDevice, IsAsGoodAsPadded) {
  for (auto kind : all_kinds()) {
    for (const bool embedding_norm : {false, true}) {
      SCOPED_TRACE(::testing::PrintToString(kind) +
                   (embedding_norm ? ", norm" : ""));
      auto config = config_of(kind);
      config.width = 24;
      config.embedding_norm = embedding_norm;
      const auto model = random_model(config);
      model->to(at::kFloat);
      const auto batch = batch_of(sequences({9, 1, 6, 3}, 9));
      const auto expected = learn(*model, batch);
      model->to(device());
      expect_alike(learn(*model, packed(batch, kLongFiller)), expected, 1e-4);
      expect_alike(learn(*model, batch), expected, 1e-4);
    }
  }
}

TEST_P(PackedOnDevice, BlackThatIsPaddingMayBeLeftOut) {
  for (const auto& kind : all_kinds()) {
    SCOPED_TRACE(::testing::PrintToString(kind));
    auto config = config_of(kind);
    config.width = 24;
    config.black = "padding";
    const auto model = random_model(config, small_pictures());
    model->to(at::kFloat);
    const auto [seen, all] = seen_and_all(config, kLongFiller);
    const auto expected = learn(*model, all);
    model->to(device());
    expect_alike(learn(*model, seen), expected, 1e-4);
    expect_alike(learn(*model, all), expected, 1e-4);
  }
}

LUNA_EVERY_DEVICE(PackedOnDevice);

}  // namespace
}  // namespace luna::models::testing
