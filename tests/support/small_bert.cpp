#include "support/small_bert.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <luna/io/safetensors.h>
#include <luna/io/text_file.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

namespace luna::testing {
namespace {

constexpr int64_t kWidth = 16, kFfn = 24, kPositions = 16, kWords = 8;
const char* const kSpecial[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

class Weights {
 public:
  void add(const std::string& name, at::IntArrayRef sizes, double size) {
    all.emplace_back(name, at::randn(sizes) * size);
  }
  void linear(const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in}, 0.4);
    add(name + ".bias", {out}, 0.1);
  }
  void norm(const std::string& name) {
    all.emplace_back(name + ".weight", at::ones({kWidth}));
    all.emplace_back(name + ".bias", at::zeros({kWidth}));
  }

  io::NamedTensors all{};
};

std::string sentences(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text = "sentence\tlabel\n";
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t length = 3 + 2 * (random() % 4);  // odd: no draw
    int balance = 0;
    for (uint64_t j = 0; j < length; ++j) {
      const uint64_t word = random() % kWords;
      balance += word < kWords / 2 ? 1 : -1;
      text += fmt::format("{}w{}", j > 0 ? " " : "", word);
    }
    text += balance > 0 ? "\t1\n" : "\t0\n";
  }
  return text;
}

}  // namespace

void write_small_bert(const std::string& folder, int64_t classes) {
  std::filesystem::create_directories(folder);
  std::string vocabulary;
  for (const char* token : kSpecial) vocabulary += fmt::format("{}\n", token);
  for (int64_t i = 0; i < kWords; ++i) vocabulary += fmt::format("w{}\n", i);
  io::write_text(folder + "/vocab.txt", vocabulary);
  const int64_t tokens = std::ssize(kSpecial) + kWords;
  nlohmann::ordered_json config = {
      {"architectures",
       {classes > 0 ? "BertForSequenceClassification" : "BertModel"}},
      {"model_type", "bert"},
      {"vocab_size", tokens},
      {"hidden_size", kWidth},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 2},
      {"intermediate_size", kFfn},
      {"hidden_act", "gelu"},
      {"hidden_dropout_prob", 0.1},
      {"max_position_embeddings", kPositions},
      {"type_vocab_size", 2}};
  if (classes > 0) config["num_labels"] = classes;
  io::write_text(folder + "/config.json", config.dump(2));

  at::manual_seed(5);
  const std::string prefix = classes > 0 ? "bert." : "";
  Weights weights;
  const std::string e = prefix + "embeddings.";
  weights.add(e + "word_embeddings.weight", {tokens, kWidth}, 1);
  weights.add(e + "position_embeddings.weight", {kPositions, kWidth}, 0.3);
  weights.add(e + "token_type_embeddings.weight", {2, kWidth}, 0.3);
  weights.norm(e + "LayerNorm");
  for (int64_t i = 0; i < 2; ++i) {
    const std::string layer = fmt::format("{}encoder.layer.{}.", prefix, i);
    for (const char* part : {"query", "key", "value"}) {
      weights.linear(layer + "attention.self." + part, kWidth, kWidth);
    }
    weights.linear(layer + "attention.output.dense", kWidth, kWidth);
    weights.norm(layer + "attention.output.LayerNorm");
    weights.linear(layer + "intermediate.dense", kFfn, kWidth);
    weights.linear(layer + "output.dense", kWidth, kFfn);
    weights.norm(layer + "output.LayerNorm");
  }
  weights.linear(prefix + "pooler.dense", kWidth, kWidth);
  if (classes > 0) weights.linear("classifier", classes, kWidth);
  io::write_safetensors(folder + "/model.safetensors", weights.all);
}

void write_small_sst2(const std::string& folder, int64_t train, int64_t test) {
  std::filesystem::create_directories(folder);
  io::write_text(folder + "/sst2_train.tsv", sentences(train, 1));
  io::write_text(folder + "/sst2_dev.tsv", sentences(test, 2));
}

}  // namespace luna::testing
