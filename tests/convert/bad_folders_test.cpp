// Folders of a BERT and a ViT, each with one thing that is wrong.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/convert/hugging_face.h>
#include <luna/data/image_processor.h>
#include <luna/io/safetensors.h>
#include <luna/io/text_file.h>
#include <luna/load_model.h>

#include <nlohmann/json.hpp>

#include "support/bad_files.h"
#include "support/small_folders.h"
#include "support/temporary_folder.h"

namespace luna::convert {
namespace {

using Json = nlohmann::ordered_json;
using luna::testing::expect_error;
using luna::testing::small_bert_config;
using luna::testing::small_bert_weights;
using luna::testing::small_vit_config;
using luna::testing::small_vit_weights;

class BadFolders : public luna::testing::FolderTest {
 protected:
  void write(const Json& config, const io::NamedTensors& weights) {
    io::write_text(path("config.json"), config.dump());
    io::write_safetensors(path("model.safetensors"), weights);
  }
  /// The config is refused, with these parts and the file in the message.
  void expect_refused(const Json& config, std::vector<std::string> parts) {
    io::write_text(path("config.json"), config.dump());
    parts.push_back(path("config.json"));
    luna::testing::expect_refused(
        folder_, [&] { load_model(folder_.string()); }, parts);
  }
};

struct Change {
  const char* field;
  Json value;
  std::vector<std::string> message;
};

TEST_F(BadFolders, BertConfigs) {
  write(small_bert_config(), small_bert_weights());
  const auto model = load_model(folder_.string());
  EXPECT_EQ(model.labels(), (std::vector<std::string>{"no", "yes", "perhaps"}));
  const std::vector<Change> changes = {
      {"model_type", "gpt2", {"model_type", "bert or vit", "gpt2"}},
      {"model_type", 7, {"model_type", "a string", "7"}},
      {"architectures",
       {"BertForTokenClassification"},
       {"architectures", "BertForMaskedLM", "BertForTokenClassification"}},
      {"architectures", "BertModel", {"architectures", "an array"}},
      {"vocab_size", 12, {"vocab_size", "expected 11", "got 12"}},
      {"vocab_size", -11, {"vocab_size", "-11"}},
      {"vocab_size", 1'000'000'000, {"vocab_size", "expected 11"}},
      {"vocab_size", 18446744073709551615u, {"vocab_size", "1844674407"}},
      {"vocab_size", 11.0, {"vocab_size", "whole number", "11.0"}},
      {"vocab_size", nullptr, {"vocab_size", "none"}},
      {"hidden_size", 0, {"hidden_size", "from 1", "got 0"}},
      {"hidden_size", 1'000'000, {"hidden_size", "expected 8"}},
      {"hidden_size", "8", {"hidden_size", "\"8\""}},
      {"num_hidden_layers", 1, {"num_hidden_layers", "expected 2", "got 1"}},
      {"num_hidden_layers", 1000, {"num_hidden_layers", "expected 2"}},
      {"num_hidden_layers", 1'000'000, {"num_hidden_layers", "1024"}},
      {"num_attention_heads",
       3,
       {"num_attention_heads", "divisor", "8", "got 3"}},
      {"num_attention_heads", 0, {"num_attention_heads", "got 0"}},
      {"intermediate_size", 13, {"intermediate_size", "expected 12"}},
      {"max_position_embeddings", 1 << 29, {"max_position_embeddings", "9"}},
      {"type_vocab_size", 3, {"type_vocab_size", "expected 2"}},
      {"hidden_act", "silu", {"hidden_act", "relu", "silu"}},
      {"layer_norm_eps", -1, {"layer_norm_eps", "-1"}},
      {"layer_norm_eps", "small", {"layer_norm_eps", "small"}},
      {"hidden_dropout_prob", 1.5, {"hidden_dropout_prob", "1.5"}},
      {"position_embedding_type",
       "relative_key",
       {"position_embedding_type", "absolute", "relative_key"}},
      {"is_decoder", true, {"is_decoder", "false"}},
      {"id2label", {{"0", "no"}, {"2", "yes"}}, {"id2label: 1", "none"}},
      {"id2label", {{"0", "no"}, {"1", "yes"}}, {"id2label", "expected 3"}},
      {"id2label", {1, 2, 3}, {"id2label", "an object"}},
      {"luna", {{"attention", "nothing"}}, {"luna: attention", "nothing"}},
      {"luna", {{"attention", "nested"}}, {"head-level", "nested"}},
      {"luna",
       {{"attention", "universal"}, {"attention_options", {{"M", 1 << 30}}}},
       {"luna: attention_options: M", "feature_map.projection", "none"}},
      {"luna",
       {{"attention", "universal"}, {"attention_options", {{"N", 1}}}},
       {"luna: attention_options: universal", "got N"}},
      {"luna",
       {{"attention", "rff"}, {"attention_options", {{"features", "2"}}}},
       {"luna: attention_options: rff", "features"}},
      {"luna",
       {{"attention", "linear"}, {"attention_options", {1}}},
       {"luna: attention_options", "an object"}},
      {"luna", 1, {"luna", "an object", "1"}},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(std::string(change.field) + " = " + change.value.dump());
    Json config = small_bert_config();
    config[change.field] = change.value;
    expect_refused(config, change.message);
  }
  expect_refused(Json::array(), {"an object", "an array"});
}

/// Far more of something than a model has: neither slow nor large.
TEST_F(BadFolders, LargeConfigs) {
  write(small_bert_config(), small_bert_weights());
  Json config = small_bert_config();
  for (int i = 0; i < 100'000; ++i) {
    config["id2label"].get_ref<Json::object_t&>().emplace_back(
        std::to_string(i), "a");
  }
  expect_refused(config, {"id2label", "expected 3"});
  const std::string file = path("config.json");
  for (const auto& [text, part] :
       {std::pair(std::string(1 << 20, '['), "64 levels"),
        {"{\"a\": [" + std::string(1 << 20, '0') + "]}", "JSON"},
        {"{\"a\": \"" + std::string(8 << 20, 'a') + "\"}", "4 MiB|4194304"}}) {
    io::write_text(file, text);
    luna::testing::expect_refused(
        folder_, [&] { load_model(folder_.string()); }, {file, part});
  }
}

/// A feature map of other sizes than the options say, and one that fits.
TEST_F(BadFolders, FeatureMaps) {
  auto weights = small_bert_weights();
  for (const std::string number : {"0", "1"}) {
    const std::string map =
        "bert.encoder.layer." + number + ".attention.self.feature_map.";
    weights.emplace_back(map + "random_projection", at::randn({6, 4}));
  }
  Json config = small_bert_config();
  config["luna"] = {{"attention", "rff"},
                    {"attention_options", {{"features", 12}}}};
  write(config, weights);
  EXPECT_TRUE(load_model(folder_.string()).fresh().empty());
  config["luna"]["attention_options"]["features"] = 1 << 30;
  expect_refused(config, {"attention_options: features", "expected 6"});
}

TEST_F(BadFolders, VitConfigs) {
  write(small_vit_config(), small_vit_weights());
  EXPECT_FALSE(HuggingFaceModel::open(folder_.string()).vit().is_empty());
  const std::vector<Change> changes = {
      {"image_size", 16, {"image_size", "expected 5", "got 17"}},
      {"image_size", 1 << 30, {"image_size", "1073741824"}},
      {"image_size", {8, 4}, {"image_size", "an array"}},
      {"patch_size", 0, {"patch_size", "got 0"}},
      {"patch_size", 2, {"patch_size", "expected 4"}},
      {"num_channels", 1, {"num_channels", "expected 3"}},
      {"qkv_bias", false, {"qkv_bias", "true", "false"}},
      {"architectures", {"BertModel"}, {"architectures", "ViTModel"}},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(std::string(change.field) + " = " + change.value.dump());
    Json config = small_vit_config();
    config[change.field] = change.value;
    expect_refused(config, change.message);
  }
}

TEST_F(BadFolders, FilesThatAreNotThereOrOfAnotherKind) {
  const auto open = [&] { HuggingFaceModel::open(folder_.string()); };
  expect_error<c10::Error>(open, {path("config.json")});
  io::write_text(path("config.json"), small_bert_config().dump());
  expect_error<c10::ValueError>(open, {"model.safetensors"});
  io::write_text(path("model.safetensors"), "short");
  expect_error<c10::ValueError>(open, {path("model.safetensors"), "header"});
  auto weights = small_bert_weights();
  weights[0].second = weights[0].second.to(at::kLong);
  write(small_bert_config(), weights);
  expect_error<c10::ValueError>(
      open, {"of another shape or type (1)", "got I64 [11, 8]"});
  io::write_text(path("config.json"), "{\"model_type\": ");
  expect_error<c10::ValueError>(open, {path("config.json"), "JSON"});
}

TEST_F(BadFolders, Preprocessors) {
  const struct {
    const char* text;
    std::vector<std::string> message;
  } bad[] = {
      {"[]", {"an object"}},
      {R"({"size": 0})", {"size", "got 0"}},
      {R"({"size": 1000000})", {"size", "1000000"}},
      {R"({"size": {"height": 8}})", {"size: width", "none"}},
      {R"({"size": {"shortest_edge": -1}})", {"shortest_edge", "-1"}},
      {R"({"size": {"shortest_edge": 8, "longest_edge": 9}})",
       {"size: longest_edge"}},
      {R"({"resample": 0})", {"resample", "bilinear", "got 0"}},
      {R"({"resample": 9})", {"resample", "got 9"}},
      {R"({"do_center_crop": true})", {"crop_size", "none"}},
      {R"({"do_resize": "yes"})", {"do_resize", "true or false", "yes"}},
      {R"({"image_mean": [1, 2]})", {"image_mean", "three numbers"}},
      {R"({"image_std": [1, 0, 1]})", {"image_std", "got 0"}},
      {R"({"rescale_factor": "a"})", {"rescale_factor", "\"a\""}},
  };
  for (const auto& [text, message] : bad) {
    SCOPED_TRACE(text);
    const std::string file = path("preprocessor_config.json");
    io::write_text(file, text);
    auto parts = message;
    parts.push_back(file);
    luna::testing::expect_refused(
        folder_, [&] { data::ImageProcessor::open(folder_.string()); }, parts);
  }
}

}  // namespace
}  // namespace luna::convert
