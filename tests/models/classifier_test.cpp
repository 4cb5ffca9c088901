// What every classifier promises, for every mechanism of the registry in every
// kind of model.

#include <luna/models/classifier.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>

#include <set>

#include "models/plain_model.h"
#include "models/small_models.h"
#include "support/errors.h"

namespace luna::models::testing {
namespace {

namespace functional = torch::nn::functional;

class EveryClassifier : public ::testing::TestWithParam<Kind> {};

// The memory has 4 rows: sequences of 2 and 3 use a part of it.
TEST_P(EveryClassifier, MatchesPlainFormulaWhateverThePadding) {
  at::NoGradGuard no_grad;
  const auto config = config_of(GetParam());
  const auto model = random_model(config);
  for (const int64_t n : {3, 9}) {
    const auto batch = batch_of(sequences({n, 2, 3}, n));
    const auto logits = model->forward(batch);
    ASSERT_EQ(logits.sizes(), at::IntArrayRef({3, kClasses}));
    for (int64_t i = 0; i < 3; ++i) {
      const auto alone = row(batch.first, i);
      expect_near(logits.narrow(0, i, 1),
                  plain_classifier(*model, config, alone.ids));
      expect_near(model->forward(batch_of(alone)), logits.narrow(0, i, 1));
    }
  }
}

TEST_P(EveryClassifier, MatchesPlainFormulaInTheOtherForm) {
  at::NoGradGuard no_grad;
  auto config = config_of(GetParam());
  config.positions = "sinusoidal";
  config.embedding_norm = true;
  config.activation = "relu";
  config.head = "mlp";
  config.head_hidden = 5;
  const auto model = random_model(config);
  const auto batch = batch_of(sequences({8, 8}, 8));
  const auto logits = model->forward(batch);
  for (int64_t i = 0; i < 2; ++i) {
    expect_near(logits.narrow(0, i, 1),
                plain_classifier(*model, config, row(batch.first, i).ids));
  }
}

TEST_P(EveryClassifier, IdsOfThePaddingChangeNothing) {
  at::NoGradGuard no_grad;
  const auto model = random_model(config_of(GetParam()));
  const auto batch = batch_of(sequences({9, 1, 6}, 9));
  auto other = batch;
  other.first.ids = at::where(
      at::arange(9).lt(batch.first.lengths.unsqueeze(1)), batch.first.ids, 0);
  EXPECT_TRUE(at::equal(model->forward(batch), model->forward(other)));
}

// Black at the end of a picture is what a shorter one has as padding; black
// elsewhere is seen by nobody.
TEST_P(EveryClassifier, BlackPixelsMayBePadding) {
  auto config = config_of(GetParam());
  const auto pixels = random_model(config, small_pictures());
  config.black = "padding";
  const auto model = random_model(config, small_pictures());
  auto batch = batch_of(sequences({9, 9, 9}, 9));
  batch.first.ids.clamp_min_(1).narrow(1, 6, 3).zero_();
  auto cut = batch;
  cut.first.lengths = at::full({3}, 6, at::kLong);
  expect_near(model->forward(batch), pixels->forward(cut));

  batch.first.ids.select(1, 3).zero_();
  model->zero_grad();
  const auto logits = model->forward(batch);
  logits.sin().sum().backward();
  const auto parameters = model->named_parameters();
  const auto rows = *parameters.find("embedding.tokens.weight"),
             positions = *parameters.find("embedding.positions.weight");
  for (const auto& unread :
       {rows.grad()[0], positions.grad()[3], positions.grad()[7]}) {
    EXPECT_EQ(unread.abs().max().item<double>(), 0);
  }
  EXPECT_GT(positions.grad()[4].abs().max().item<double>(), 0);
  {
    at::NoGradGuard no_grad;
    rows[0].fill_(100);
    positions[3].fill_(-100);
  }
  expect_near(model->forward(batch), logits);
}

TEST_P(EveryClassifier, OrderInTheBatchDoesNotMatter) {
  at::NoGradGuard no_grad;
  const auto model = random_model(config_of(GetParam()));
  const auto batch = batch_of(sequences({9, 1, 6, 3}, 9));
  const auto order = at::tensor({2, 0, 3, 1}, at::kLong);
  auto other = batch;
  other.first.ids = batch.first.ids.index_select(0, order);
  other.first.lengths = batch.first.lengths.index_select(0, order);
  expect_near(model->forward(other),
              model->forward(batch).index_select(0, order));
}

// With the memory pooled, the last layer's x is read by nobody; with x pooled,
// the memory after the last layer is not.
TEST_P(EveryClassifier, GradientsFlowToWhatIsRead) {
  const auto kind = GetParam();
  const auto model = random_model(config_of(kind));
  const auto batch = batch_of(sequences({9, 4, 6}, 9));
  functional::cross_entropy(model->forward(batch), batch.labels).backward();
  const auto unread = [&](const std::string& name) {
    if (!name.starts_with("layers.1.")) return false;
    if (kind.pooling != "memory") {
      return kind.norm == "post" && name.starts_with("layers.1.memory_norm");
    }
    for (const char* part : {"ffn", "q_proj", "c_proj", "out_proj"}) {
      const bool of_pack = name.find(".pq_proj") != std::string::npos ||
                           name.find(".pc_proj") != std::string::npos;
      if (!of_pack && name.find(part) != std::string::npos) return true;
    }
    return kind.norm == "post" && name.starts_with("layers.1.attention_norm");
  };
  for (const auto& entry : model->named_parameters()) {
    const auto& gradient = entry.value().grad();
    EXPECT_EQ(gradient.defined(), !unread(entry.key())) << entry.key();
    if (!gradient.defined()) continue;
    EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << entry.key();
    // A constant added to all keys changes no softmax.
    const bool free =
        kind.attention == "softmax" && entry.key().ends_with("k_proj.bias");
    if (!free) {
      EXPECT_GT(gradient.abs().max().item<double>(), 1e-12) << entry.key();
    }
  }
}

TEST_P(EveryClassifier, LearnsEightSamplesByHeart) {
  at::manual_seed(1);
  auto config = config_of(GetParam());
  config.width = 24;
  config.ffn = 48;
  config.init = "xavier";
  const auto model = make_model(config, small_task(), kLongest);
  const auto batch = batch_of(sequences({9, 7, 9, 5, 9, 8, 6, 9}, 9, 8));
  torch::optim::Adam optimizer(model->parameters(),
                               torch::optim::AdamOptions(3e-3));
  // Most need 30 steps. rff's kernel can be negative and its denominators near
  // 0, so that its loss jumps: it may need more.
  double loss = 1;
  for (int step = 0; step < 120 && loss >= 0.05; ++step) {
    optimizer.zero_grad();
    const auto entropy =
        functional::cross_entropy(model->forward(batch), batch.labels);
    entropy.backward();
    optimizer.step();
    loss = entropy.item<double>();
  }
  EXPECT_LT(loss, 0.05);
}

TEST_P(EveryClassifier, SameSeedSameWeightsAndDropout) {
  auto config = config_of(GetParam());
  config.dropout = 0.2;
  config.attention_dropout = 0.2;
  config.activation_dropout = 0.2;
  const auto batch = batch_of(sequences({9, 4, 6}, 9));
  const auto logits = [&](uint64_t seed, bool training) {
    at::manual_seed(seed);
    const auto model = make_model(config, small_task(), kLongest);
    model->train(training);
    return std::pair(model->forward(batch), model->forward(batch));
  };
  const auto [first, second] = logits(1, true);
  EXPECT_TRUE(at::equal(first, logits(1, true).first));
  EXPECT_FALSE(at::equal(first, second)) << "nothing was dropped";
  EXPECT_FALSE(at::equal(first, logits(2, true).first));
  const auto [one, two] = logits(1, false);
  EXPECT_TRUE(at::equal(one, two)) << "dropped while evaluating";
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryClassifier,
                         ::testing::ValuesIn(all_kinds()), name_of);

TEST(Classifier, ChannelStatisticsLeaveOutThePadding) {
  at::NoGradGuard no_grad;
  auto config = small_config("universal");
  config.attention_options = {{"ch_rms", true}};
  const auto model = random_model(config);
  const auto batch = batch_of(sequences({5, 3}, 5));
  auto longer = batch;
  longer.first.ids = at::constant_pad_nd(batch.first.ids, {0, 4}, 1);
  expect_near(model->forward(longer), model->forward(batch));
}

TEST(Classifier, AFullBatchNeedsNoMask) {
  at::NoGradGuard no_grad;
  const auto model = random_model(small_config("softmax"));
  auto batch = batch_of(sequences({6, 6}, 6));
  const auto logits = model->forward(batch);
  batch.first.lengths = at::tensor({6, 2}, at::kLong);
  EXPECT_FALSE(at::equal(model->forward(batch), logits));
  batch.first.full = true;  // the host's word: lengths are not looked at
  EXPECT_TRUE(at::equal(model->forward(batch), logits));
}

TEST(Classifier, AsksForClsWherePooled) {
  for (const std::string pooling : {"cls", "mean", "memory"}) {
    const auto model = random_model(config_of({"nested", "post", pooling}));
    EXPECT_EQ(model->batch_options().cls, pooling == "cls");
  }
}

TEST(Classifier, DroppedAttentionIsTheMechanismsOwn) {
  auto config = small_config("softmax");
  config.attention_dropout = 0.5;
  const auto batch = batch_of(sequences({9, 9}, 9));
  const auto softmax = random_model(config);
  EXPECT_FALSE(at::equal(softmax->forward(batch), softmax->forward(batch)));
  config.attention = "linear";
  const auto linear = random_model(config);
  EXPECT_TRUE(at::equal(linear->forward(batch), linear->forward(batch)));
  EXPECT_TRUE(has_attention_dropout("nested"));
  EXPECT_FALSE(has_attention_dropout("universal"));
}

TEST(Classifier, RefusesWhatCannotBe) {
  const auto refuses = [](const ModelConfig& config,
                          const std::vector<std::string>& parts,
                          int64_t longest = kLongest) {
    luna::testing::expect_error<c10::ValueError>(
        [&] { make_model(config, small_task(), longest); }, parts);
  };
  auto config = small_config("universal");
  config.pooling = "memory";
  refuses(config, {"nested", "pooling = memory", "got universal"});

  config = small_config("softmax");
  config.attention_dropout = 0.1;
  config.attention_options = {{"dropout", 0.2}};
  refuses(config,
          {"attention_dropout", "attention_options.dropout", "0.1", "0.2"});

  config = small_config("linear");
  config.attention_options = {{"dropout", 0.2}};
  refuses(config, {"linear", "dropout"});

  config = small_config("universal");
  config.heads = 5;
  refuses(config, {"width", "multiple of heads", "12 and 5"});

  config = small_config("universal");
  config.head = "mlp";
  refuses(config, {"head_hidden > 0", "got 0 for mlp"});

  config = small_config("universal");
  config.norm = "middle";
  refuses(config, {"norm", "pre, post", "got middle"});

  config = small_config("universal");
  config.max_positions = 8;
  refuses(config, {"max_positions: expected at least 9", "got 8"});
  config.max_positions = 9;
  config.pooling = "cls";
  refuses(config, {"max_positions: expected at least 10", "got 9"});
  config.max_positions = 0;
  refuses(config, {"max_positions", "got 0"}, 0);

  config = small_config("universal");
  config.embedding = "line";
  refuses(config, {"embedding", "table for small", "got line"});
  config = small_config("universal");
  config.black = "padding";
  refuses(config, {"black", "pixel for small", "got padding"});

  config = small_config("universal");
  config.positions = "sinusoidal";
  config.width = config.heads = 3;
  const auto model = make_model(config, small_task(), kLongest);
  luna::testing::expect_error<c10::ValueError>(
      [&] { model->forward(batch_of(sequences({2}, 2))); },
      {"even number", "got 3"});
}

TEST(Classifier, RefusesSequencesBeyondItsPositions) {
  const auto model = random_model(small_config("universal"));
  luna::testing::expect_error<c10::ValueError>(
      [&] { model->forward(batch_of(sequences({12}, 12))); },
      {"at most 11", "max_positions", "got 12"});
}

TEST(Classifier, PositionsLeaveRoomForSpecials) {
  auto config = small_config("universal");
  const auto rows = [&] {
    return std::dynamic_pointer_cast<Classifier>(
               make_model(config, small_task(), kLongest))
        ->embedding->positions->weight.size(0);
  };
  EXPECT_EQ(rows(), kLongest + 2);
  config.max_positions = 20;
  EXPECT_EQ(rows(), 20);
}

// Grey 0 is black's vector, the last id white's, the others lie between them.
TEST(Classifier, ALineOfGreyValuesIsATableOfItsPoints) {
  auto config = small_config("universal");
  config.pooling = "cls";
  const auto table = random_model(config);
  config.embedding = "line";
  const auto line = random_model(config, small_pictures());
  const auto weight = [](Model& model) {
    return *model.named_parameters().find("embedding.tokens.weight");
  };
  const auto ends = weight(*line), rows = weight(*table);
  ASSERT_EQ(ends.sizes(), at::IntArrayRef({4, config.width}));
  {
    at::NoGradGuard no_grad;
    for (const auto& entry : line->named_parameters()) {
      if (entry.key() == "embedding.tokens.weight") continue;
      table->named_parameters().find(entry.key())->copy_(entry.value());
    }
    for (int64_t v = 0; v < kVocabulary; ++v) {
      const double share = static_cast<double>(v) / (kVocabulary - 1);
      rows[v] = (1 - share) * ends[0] + share * ends[1];
    }
    rows[kVocabulary] = ends[2];
    rows[kVocabulary + 1] = ends[3];
  }
  const auto batch = batch_of(sequences({9, 9, 6}, 9));
  const auto logits = line->forward(batch), expected = table->forward(batch);
  expect_near(logits, expected);

  logits.sin().sum().backward();
  expected.sin().sum().backward();
  at::Tensor black = at::zeros_like(ends[0]), white = at::zeros_like(ends[0]);
  for (int64_t v = 0; v < kVocabulary; ++v) {
    const double share = static_cast<double>(v) / (kVocabulary - 1);
    black += (1 - share) * rows.grad()[v];
    white += share * rows.grad()[v];
  }
  expect_near(ends.grad(), at::stack({black, white, rows.grad()[kVocabulary],
                                      rows.grad()[kVocabulary + 1]}));
}

TEST(Sinusoid, IsTheFormula) {
  const auto waves = sinusoid(3, 6, at::kDouble);
  // frequencies 1, 10^-2, 10^-4
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 3; ++i) {
      const double angle = static_cast<double>(t) * std::pow(100.0, -i);
      EXPECT_NEAR(waves[t][i].item<double>(), std::sin(angle), 1e-14);
      EXPECT_NEAR(waves[t][3 + i].item<double>(), std::cos(angle), 1e-14);
    }
  }
}

}  // namespace
}  // namespace luna::models::testing
