#include "support/small_folders.h"

#include <ATen/ops/randn.h>

namespace luna::testing {
namespace {

using Json = nlohmann::ordered_json;

void add_linear(const std::string& name, int64_t out, int64_t in,
                io::NamedTensors& all) {
  all.emplace_back(name + ".weight", at::randn({out, in}));
  all.emplace_back(name + ".bias", at::randn({out}));
}

void add_norm(const std::string& name, io::NamedTensors& all) {
  all.emplace_back(name + ".weight", at::randn({8}));
  all.emplace_back(name + ".bias", at::randn({8}));
}

}  // namespace

Json small_bert_config() {
  return Json::parse(R"({
    "architectures": ["BertForSequenceClassification"], "model_type": "bert",
    "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 12, "hidden_act": "gelu",
    "max_position_embeddings": 9, "type_vocab_size": 2,
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"}})");
}

Json small_vit_config() {
  return Json::parse(R"({
    "architectures": ["ViTModel"], "model_type": "vit", "image_size": 8,
    "patch_size": 4, "num_channels": 3, "hidden_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 12})");
}

io::NamedTensors small_bert_weights() {
  io::NamedTensors all;
  const std::string embeddings = "bert.embeddings.";
  for (const auto& [name, rows] :
       {std::pair("word", 11), {"position", 9}, {"token_type", 2}}) {
    all.emplace_back(embeddings + name + "_embeddings.weight",
                     at::randn({rows, 8}));
  }
  add_norm(embeddings + "LayerNorm", all);
  for (const std::string number : {"0", "1"}) {
    const std::string layer = "bert.encoder.layer." + number + ".";
    for (const char* part : {"query", "key", "value"}) {
      add_linear(layer + "attention.self." + part, 8, 8, all);
    }
    add_linear(layer + "attention.output.dense", 8, 8, all);
    add_norm(layer + "attention.output.LayerNorm", all);
    add_linear(layer + "intermediate.dense", 12, 8, all);
    add_linear(layer + "output.dense", 8, 12, all);
    add_norm(layer + "output.LayerNorm", all);
  }
  add_linear("bert.pooler.dense", 8, 8, all);
  add_linear("classifier", 3, 8, all);
  return all;
}

io::NamedTensors small_vit_weights() {
  io::NamedTensors all = {
      {"embeddings.cls_token", at::randn({1, 1, 8})},
      {"embeddings.position_embeddings", at::randn({1, 5, 8})},
      {"embeddings.patch_embeddings.projection.weight",
       at::randn({8, 3, 4, 4})},
      {"embeddings.patch_embeddings.projection.bias", at::randn({8})}};
  const std::string layer = "encoder.layer.0.";
  for (const char* part : {"query", "key", "value"}) {
    add_linear(layer + "attention.attention." + part, 8, 8, all);
  }
  add_linear(layer + "attention.output.dense", 8, 8, all);
  add_linear(layer + "intermediate.dense", 12, 8, all);
  add_linear(layer + "output.dense", 8, 12, all);
  add_norm(layer + "layernorm_before", all);
  add_norm(layer + "layernorm_after", all);
  add_norm("layernorm", all);
  return all;
}

}  // namespace luna::testing
