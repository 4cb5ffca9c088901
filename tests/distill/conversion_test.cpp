#include "luna/distill/conversion.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <luna/convert/glue_data.h>
#include <luna/convert/hugging_face.h>
#include <luna/distill/stage_one.h>
#include <luna/io/weights.h>
#include <luna/models/bert_classifier.h>
#include <luna/report/conversion_page.h>
#include <luna/train/run_model.h>
#include <numeric>
#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

#include "support/errors.h"
#include "support/small_bert.h"
#include "support/temporary_folder.h"

namespace luna::distill {
namespace {

using convert::HuggingFaceModel;
using luna::testing::expect_error;

class ConversionTest : public luna::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    luna::testing::write_small_bert(path("bert"), 2);
    luna::testing::write_small_sst2(path("glue"), 120, 60);
  }

  ConversionOptions options(const std::string& attention) const {
    ConversionOptions options;
    options.model = path("bert");
    options.task = "sst2";
    options.data = path("glue");
    options.out = path("out");
    options.attention = attention;
    options.batch = 16;
    options.fit_steps = 20;
    options.stage_two_epochs = 1;
    options.stage_two_lr = 1e-3;
    return options;
  }

  data::Splits splits(const HuggingFaceModel& model) const {
    return convert::open_glue("sst2", path("glue"),
                              text::WordPiece::open(path("bert")),
                              model.bert()->config());
  }

  /// Accuracy of a folder on the test split, sample by sample.
  double accuracy(const std::string& folder) const {
    const at::NoGradGuard no_grad;
    const auto model = HuggingFaceModel::open(folder);
    const auto data = splits(model).test;
    models::BertClassifier classifier(model.bert());
    classifier.eval();
    int64_t right = 0;
    for (int64_t i = 0; i < data->size(); ++i) {
      const auto batch = make_batch(*data, std::span(&i, 1), {});
      right += classifier.forward(batch).argmax(-1).item<int64_t>() ==
               (*data)[i].label;
    }
    return static_cast<double>(right) / static_cast<double>(data->size());
  }
};

std::vector<std::string> names(const Conversion& conversion) {
  std::vector<std::string> all;
  for (const Milestone& m : conversion.milestones) all.push_back(m.name);
  return all;
}

TEST_F(ConversionTest, ALinearModelIsNoTeacher) {
  HuggingFaceModel::open(path("bert"), {.attention = "linear"})
      .write(path("linear"));
  ConversionOptions o = options("universal");
  o.model = path("linear");
  o.say = [](const std::string& text) { ADD_FAILURE() << text; };
  expect_error<c10::ValueError>(
      [&] { convert_model(o); },
      {path("linear/config.json") +
       ": luna: attention: expected softmax, got linear"});
}

/// Of CIFAR-10 there is a test file; GLUE's has no labels.
TEST(ConversionPage, SaysWhatIsLearntAndJudged) {
  Conversion conversion;
  conversion.task = "sst2";
  conversion.milestones = {{.name = "original"}, {.name = "stage 2"}};
  const auto note = [&] {
    return report::conversion_page(conversion, "nowhere").html();
  };
  EXPECT_NE(note().find("published validation file"), std::string::npos);
  EXPECT_EQ(note().find("Stage 1"), std::string::npos);
  EXPECT_NE(note().find("learn the labels and the original"),
            std::string::npos);
  EXPECT_NE(note().find("logits and its hidden states"), std::string::npos);
  conversion.task = "cifar10";
  conversion.options.teacher_weight = 0;
  conversion.options.states_weight = 0;
  EXPECT_NE(note().find("published test file"), std::string::npos);
  EXPECT_NE(note().find("learn the labels."), std::string::npos);
}

TEST_F(ConversionTest, ReportsWhatTheFoldersComeTo) {
  ConversionOptions o = options("universal");
  o.fit_steps = 100;
  const Conversion whole = convert_model(o);
  EXPECT_EQ(names(whole),
            (std::vector<std::string>{"original", "swapped", "fitted",
                                      "stage 1", "stage 2"}));
  EXPECT_DOUBLE_EQ(whole.find("original")->test.accuracy,
                   accuracy(path("bert")));
  EXPECT_DOUBLE_EQ(whole.find("stage 2")->test.accuracy, accuracy(o.out));
  EXPECT_DOUBLE_EQ(whole.kept("stage 2"),
                   accuracy(o.out) / accuracy(path("bert")));
  // Without stage 2 the same way ends at stage 1, to the same number.
  o.stage_two_epochs = 0;
  o.out = path("one");
  const Conversion one = convert_model(o);
  EXPECT_DOUBLE_EQ(one.find("stage 1")->test.accuracy, accuracy(o.out));
  EXPECT_DOUBLE_EQ(one.find("stage 1")->test.loss,
                   whole.find("stage 1")->test.loss);
  EXPECT_FALSE(std::filesystem::exists(o.out + ".work"));

  ASSERT_EQ(whole.before.size(), 2u);
  double before = 0, after = 0;
  for (size_t layer = 0; layer < 2; ++layer) {
    ASSERT_EQ(whole.after[layer].size(), 2u);
    for (size_t head = 0; head < 2; ++head) {
      before += whole.before[layer][head];
      after += whole.after[layer][head];
    }
  }
  EXPECT_LT(after, 0.5 * before);

  const auto json = nlohmann::json::parse(conversion_json(whole));
  EXPECT_EQ(json["milestones"].size(), 5u);
  EXPECT_EQ(json["milestones"][4]["score"], whole.milestones[4].test.score);
  const std::string page = report::conversion_page(whole, path("out")).html();
  EXPECT_NE(page.find("Learned ψ"), std::string::npos);
  EXPECT_NE(page.find("stage 2"), std::string::npos);
}

TEST_F(ConversionTest, StageOneChangesTheAttentionAlone) {
  ConversionOptions o = options("universal");
  o.stage_two_epochs = 0;
  convert_model(o);
  const auto before = io::open_weights(path("bert"));
  const auto after = io::open_weights(o.out);
  int64_t same = 0, based = 0;
  for (const io::TensorEntry& entry : before.entries()) {
    const bool is_based = entry.name.find("self.query") != std::string::npos ||
                          entry.name.find("self.key") != std::string::npos;
    const bool equal =
        at::equal(before.tensor(entry.name), after.tensor(entry.name));
    EXPECT_EQ(equal, !is_based) << entry.name;
    (is_based ? based : same) += 1;
  }
  EXPECT_EQ(based, 8);  // weights and biases of 2 layers
  EXPECT_GT(same, 20);

  o.bases = false;
  o.out = path("unbased");
  convert_model(o);
  const auto unbased = io::open_weights(o.out);
  for (const io::TensorEntry& entry : before.entries()) {
    EXPECT_TRUE(
        at::equal(before.tensor(entry.name), unbased.tensor(entry.name)))
        << entry.name;
  }
}

TEST_F(ConversionTest, BalancedBasesKeepSoftmax) {
  const at::NoGradGuard no_grad;
  const auto teacher = HuggingFaceModel::open(path("bert"));
  const auto swapped =
      HuggingFaceModel::open(path("bert"), {.attention = "universal"});
  const auto model = train::as_classifier(teacher);
  Student student(model, *train::as_classifier(swapped), /*bases=*/true);
  const auto batches =
      first_batches(student, *splits(teacher).train, 64, 16, 1);
  student.balance(batches);
  student.fold();
  // The folded projections in a softmax model, times d^1/4 each way, give the
  // logits that the original gives.
  swapped.write(path("folded"));
  auto folded =
      HuggingFaceModel::open(path("folded"), {.attention = "softmax"});
  for (const auto& item : folded.module().named_parameters()) {
    const bool is_based = item.key().find("q_proj") != std::string::npos ||
                          item.key().find("k_proj") != std::string::npos;
    if (is_based) item.value().mul_(std::pow(8.0, 0.25));
  }
  const auto other = train::as_classifier(folded);
  EXPECT_TRUE(at::allclose(model->forward(batches[0]),
                           other->forward(batches[0]), 1e-4, 1e-4));
}

// Steps so long that they lead away from the teacher are taken back, layer by
// layer.
TEST_F(ConversionTest, NoLayerGetsWorse) {
  ConversionOptions o = options("universal");
  o.fit_lr = 20;
  o.stage_one_lr = 20;
  o.stage_two_epochs = 0;
  const Conversion done = convert_model(o);
  for (size_t layer = 0; layer < 2; ++layer) {
    const auto sum = [](const std::vector<double>& heads) {
      return std::accumulate(heads.begin(), heads.end(), 0.0);
    };
    EXPECT_LE(sum(done.after[layer]), sum(done.before[layer]) + 1e-6) << layer;
  }
}

TEST_F(ConversionTest, MechanismsWithLittleToLearn) {
  for (const std::string attention : {"linear", "rff"}) {
    SCOPED_TRACE(attention);
    ConversionOptions o = options(attention);
    const Conversion conversion = convert_model(o);
    EXPECT_EQ(names(conversion),
              (std::vector<std::string>{"original", "swapped", "stage 1",
                                        "stage 2"}));
    // linear learns bases, 2 layers x 2 heads x 2 x (8 x 8 + 8); rff nothing.
    EXPECT_EQ(conversion.stage_one_parameters,
              attention == "linear" ? 2 * 2 * 2 * (8 * 8 + 8) : 0);
    EXPECT_DOUBLE_EQ(conversion.find("stage 2")->test.accuracy,
                     accuracy(o.out));
    if (attention == "rff") {
      EXPECT_DOUBLE_EQ(conversion.find("stage 1")->test.loss,
                       conversion.find("swapped")->test.loss);
    }
  }
}

TEST_F(ConversionTest, OutputsMayBeMatchedInstead) {
  ConversionOptions o = options("universal");
  o.stage_one_loss = "outputs";
  o.stage_one_epochs = 4;
  o.stage_two_epochs = 0;
  const Conversion conversion = convert_model(o);
  ASSERT_GE(conversion.stage_one_losses.size(), 2u);
  EXPECT_LT(conversion.stage_one_losses.back(),
            conversion.stage_one_losses.front());
}

TEST_F(ConversionTest, StageTwoStopsWhereNothingGetsBetter) {
  ConversionOptions o = options("universal");
  o.stage_two_epochs = 40;
  o.stage_two_lr = 0;  // the first validation is the best
  o.patience = 2;
  int64_t validations = 0;
  o.say = [&](const std::string& text) {
    validations += text.find("validation") != std::string::npos;
  };
  const Conversion conversion = convert_model(o);
  EXPECT_EQ(validations, 1 + 2);
  EXPECT_EQ(conversion.find("stage 2")->test.loss,
            conversion.find("stage 1")->test.loss);
}

TEST_F(ConversionTest, StageTwoLearnsByTheLossThatIsAskedFor) {
  std::set<double> losses;
  for (const auto& [weight, temperature, states] : {std::tuple{0.0, 1.0, 0.0},
                                                    {1.0, 1.0, 0.0},
                                                    {1.0, 4.0, 0.0},
                                                    {0.0, 1.0, 1.0}}) {
    ConversionOptions o = options("linear");
    o.teacher_weight = weight;
    o.temperature = temperature;
    o.states_weight = states;
    losses.insert(convert_model(o).find("stage 2")->test.loss);
  }
  EXPECT_EQ(losses.size(), 4u);
}

TEST_F(ConversionTest, RefusesAModelOfAnotherTask) {
  ConversionOptions o = options("universal");
  o.task = "sick";
  expect_error<c10::ValueError>([&] { convert_model(o); },
                                {"bert", "3 classes of sick", "got one of 2"});
}

TEST_F(ConversionTest, RefusesAStartThatCannotLearn) {
  ConversionOptions o = options("universal");
  o.start = "random";
  o.stage_two_epochs = 0;
  o.bases = false;
  // The mechanism's own sizes have several psi, of which some are alive.
  EXPECT_EQ(names(convert_model(o)).back(), "stage 1");
  o.attention_options = {{"L", int64_t{1}}, {"hidden", int64_t{1}}};
  int dead = 0;
  for (o.seed = 1; o.seed <= 12; ++o.seed) {
    try {
      convert_model(o);
    } catch (const c10::ValueError& error) {
      ++dead;
      EXPECT_NE(std::string(error.what()).find("--start softmax"),
                std::string::npos)
          << error.what();
    }
  }
  EXPECT_GT(dead, 0);
}

}  // namespace
}  // namespace luna::distill
