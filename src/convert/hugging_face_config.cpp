#include "convert/hugging_face_config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <luna/nn/attention_registry.h>

#include <map>
#include <nlohmann/json.hpp>

#include "config/check_options.h"
#include "config/json.h"
#include "io/bounded_json.h"
#include "io/json_fields.h"

namespace luna::convert {
namespace {

using Json = nlohmann::json;
using Fields = io::JsonFields<Json>;

constexpr int64_t kMostLayers = 1024;
constexpr int64_t kMostSize = int64_t{1} << 30;

/// Tensors of the files by canonical name, with their shapes.
class Shapes {
 public:
  Shapes(const io::Weights& weights, Family family) : family_(family) {
    for (const io::TensorEntry& entry : weights.entries()) {
      shapes_[canonical_name(family, entry.name, false)] = entry.sizes;
    }
  }

  bool contains(const std::string& name) const {
    return shapes_.contains(name);
  }

  Family family() const { return family_; }

  /// The dimensions of the tensor; 0 if there is none.
  size_t dimensions(const std::string& name) const {
    const auto found = shapes_.find(name);
    return found == shapes_.end() ? 0 : found->second.size();
  }

  /// The field, which must be the tensor's size in that dimension.
  int64_t size(const Fields& config, const std::string& field, int64_t value,
               const std::string& tensor, size_t dimension) const {
    const auto found = shapes_.find(tensor);
    TORCH_CHECK_VALUE(found != shapes_.end(), config.place(field),
                      ": expected the tensor ", tensor,
                      " in the weights, to have its size, got none");
    const auto& sizes = found->second;
    TORCH_CHECK_VALUE(
        dimension < sizes.size() && sizes[dimension] == value,
        config.place(field), ": expected ",
        dimension < sizes.size() ? std::to_string(sizes[dimension])
                                 : "a tensor with it",
        " (dimension ", dimension, " of ", tensor, ", which is [",
        fmt::format("{}", fmt::join(sizes, ", ")), "]), got ", value);
    return value;
  }

 private:
  Family family_;
  std::map<std::string, std::vector<int64_t>> shapes_{};
};

int64_t required(const Fields& config, const std::string& name,
                 int64_t most = kMostSize) {
  config.get(name, "a whole number");
  return *config.integer(name, 1, most);
}

/// A field that may hold one value only.
template <class Value>
void check_only(const Fields& config, const std::string& name,
                const std::optional<Value>& found, const Value& only) {
  TORCH_CHECK_VALUE(!found || *found == only, config.place(name), ": expected ",
                    config::to_string(only),
                    " (nothing else is supported), got ",
                    config::to_string(*found));
}

std::string read_activation(const Fields& config, const std::string& name) {
  static const std::map<std::string, std::string> known = {
      {"gelu", "gelu"},
      {"gelu_new", "gelu_tanh"},
      {"gelu_fast", "gelu_tanh"},
      {"gelu_pytorch_tanh", "gelu_tanh"},
      {"relu", "relu"}};
  const std::string act = config.text(name).value_or("gelu");
  const auto found = known.find(act);
  if (found == known.end()) {
    std::vector<std::string> names;
    for (const auto& [key, value] : known) names.push_back(key);
    TORCH_CHECK_VALUE(false, config.place(name), ": expected one of ",
                      config::known_and_nearest(act, names), ", got ", act);
  }
  return found->second;
}

/// "luna": {"attention": NAME, "attention_options": {...}}, else softmax.
void read_attention(const Fields& config, const OpenOptions& options,
                    models::EncoderLayerOptions& layer) {
  layer.attention = "softmax";
  if (options.attention) {
    layer.attention = *options.attention;
    layer.attention_options = options.attention_options;
  } else if (config.has("luna")) {
    const Fields own = config.object("luna");
    layer.attention = own.text("attention").value_or("softmax");
    if (own.has("attention_options")) {
      config::detail::read_map(
          own.place("attention_options"),
          nlohmann::ordered_json(*own.find("attention_options")),
          layer.attention_options);
    }
  }
  std::vector<std::string> known;
  for (const auto& info : nn::attentions()) {
    if (info.traits.head_level) known.push_back(info.name);
  }
  const std::string where =
      options.attention ? "attention" : config.place("luna") + ": attention";
  TORCH_CHECK_VALUE(std::ranges::find(known, layer.attention) != known.end(),
                    where, ": expected a head-level mechanism, one of ",
                    config::known_and_nearest(layer.attention, known), ", got ",
                    layer.attention);
  config::check_option_map(where + "_options: " + layer.attention,
                           nn::find_attention(layer.attention).options,
                           layer.attention_options);
}

models::EncoderLayerOptions read_layer(const Fields& config,
                                       const OpenOptions& options,
                                       double attention_dropout) {
  models::EncoderLayerOptions layer;
  layer.width = required(config, "hidden_size");
  layer.heads = required(config, "num_attention_heads");
  layer.ffn = required(config, "intermediate_size");
  TORCH_CHECK_VALUE(layer.width % layer.heads == 0,
                    config.place("num_attention_heads"),
                    ": expected a divisor of hidden_size = ", layer.width,
                    ", got ", layer.heads);
  layer.norm_eps = config.number("layer_norm_eps", 0, 1).value_or(1e-12);
  layer.activation = read_activation(config, "hidden_act");
  layer.dropout = config.number("hidden_dropout_prob", 0, 1).value_or(0);
  read_attention(config, options, layer);
  const double dropout = config.number("attention_probs_dropout_prob", 0, 1)
                             .value_or(attention_dropout);
  if (layer.attention == "softmax" && dropout > 0) {
    layer.attention_options.try_emplace("dropout", dropout);
  }
  return layer;
}

std::vector<std::string> read_labels(const Fields& config) {
  std::vector<std::string> labels;
  if (config.has("id2label")) {
    const Fields names = config.object("id2label");
    const auto count = config.find("id2label")->size();
    for (size_t i = 0; i < count; ++i) {
      const std::string key = std::to_string(i);
      names.get(key, "a class's name");
      labels.push_back(*names.text(key));
    }
    return labels;
  }
  const int64_t count = config.integer("num_labels", 1, 1'000'000).value_or(2);
  for (int64_t i = 0; i < count; ++i) {
    labels.push_back("LABEL_" + std::to_string(i));
  }
  return labels;
}

/// Options that are sizes of a feature map's tensors, in a dimension counted
/// from the last one.
constexpr struct {
  const char* option;
  const char* tensor;
  size_t from_last;
  int64_t rows;  ///< of the option that one row of the tensor stands for
} kFeatureMapSizes[] = {{"M", "projection", 1, 1},
                        {"L", "output_weight", 1, 1},
                        {"hidden", "output_weight", 0, 1},
                        {"features", "random_projection", 1, 2}};

void check_feature_map(const Fields& config, const Shapes& shapes,
                       const models::EncoderLayerOptions& layer) {
  for (const auto& size : kFeatureMapSizes) {
    const auto given = layer.attention_options.find(size.option);
    if (given == layer.attention_options.end()) continue;
    const auto* value = std::get_if<int64_t>(&given->second);
    if (value == nullptr) continue;
    const std::string tensor = their_name(
        shapes.family(),
        std::string("layers.0.attention.feature_map.") + size.tensor);
    const auto dimensions = shapes.dimensions(tensor);
    shapes.size(config, std::string("luna: attention_options: ") + size.option,
                *value / size.rows, tensor,
                dimensions - std::min(dimensions, size.from_last + 1));
  }
}

/// The sizes both families have, beside those of the weights.
int64_t check_layers(const Fields& config, const Shapes& shapes,
                     const OpenOptions& options,
                     const models::EncoderLayerOptions& layer) {
  const auto layers = required(config, "num_hidden_layers", kMostLayers);
  if (!options.attention) check_feature_map(config, shapes, layer);
  shapes.size(config, "intermediate_size", layer.ffn,
              "encoder.layer.0.intermediate.dense.weight", 0);
  shapes.size(config, "hidden_size", layer.width,
              "encoder.layer.0.intermediate.dense.weight", 1);
  const auto last = [](int64_t i) {
    return fmt::format("encoder.layer.{}.output.dense.weight", i);
  };
  int64_t there = 0;
  while (shapes.contains(last(there))) ++there;
  TORCH_CHECK_VALUE(layers == there, config.place("num_hidden_layers"),
                    ": expected ", there, ", as many as the weights have, got ",
                    layers);
  return layers;
}

void read_classifier(const Fields& config, const Shapes& shapes,
                     const OpenOptions& options, bool has_head,
                     HuggingFaceConfig& result, int64_t& classes) {
  if (options.classes > 0) {
    for (int64_t i = 0; i < options.classes; ++i) {
      result.labels.push_back("LABEL_" + std::to_string(i));
    }
    result.architecture = result.family == Family::kBert
                              ? "BertForSequenceClassification"
                              : "ViTForImageClassification";
  } else if (has_head) {
    result.labels = read_labels(config);
    const char* field = config.has("id2label") ? "id2label" : "num_labels";
    shapes.size(config, field, std::ssize(result.labels), "classifier.weight",
                0);
  }
  classes = std::ssize(result.labels);
}

void read_bert(const Fields& config, const Shapes& shapes,
               const OpenOptions& options, HuggingFaceConfig& result) {
  auto& bert = result.bert;
  check_only(config, "position_embedding_type",
             config.text("position_embedding_type"), std::string("absolute"));
  check_only(config, "is_decoder", config.boolean("is_decoder"), false);
  check_only(config, "add_cross_attention",
             config.boolean("add_cross_attention"), false);
  bert.layer = read_layer(config, options, 0.1);
  bert.layer.pre_norm = false;
  bert.layers = check_layers(config, shapes, options, bert.layer);
  const auto rows = [&](const char* field, const std::string& table) {
    const std::string tensor = "embeddings." + table + "_embeddings.weight";
    shapes.size(config, "hidden_size", bert.layer.width, tensor, 1);
    return shapes.size(config, field, required(config, field), tensor, 0);
  };
  bert.vocabulary = rows("vocab_size", "word");
  bert.positions = rows("max_position_embeddings", "position");
  bert.token_types = rows("type_vocab_size", "token_type");
  bert.classifier_dropout =
      config.number("classifier_dropout", 0, 1).value_or(bert.layer.dropout);
  const std::string& name = result.architecture;
  const bool has_head = name == "BertForSequenceClassification";
  const bool predicts =
      name == "BertForMaskedLM" || name == "BertForPreTraining";
  read_classifier(config, shapes, options, has_head, result, bert.classes);
  bert.masked_lm = predicts && bert.classes == 0;
  bert.tied = config.boolean("tie_word_embeddings").value_or(true);
  bert.pooler = bert.classes > 0 ||
                (!bert.masked_lm && shapes.contains("pooler.dense.weight"));
}

/// A number, or an array of two that are equal.
int64_t read_square(const Fields& config, const std::string& name) {
  const Json& json = config.get(name, "a whole number");
  const bool pair = json.is_array() && json.size() == 2 && json[0] == json[1];
  return Fields::integer_of(pair ? json[0] : json, config.place(name), 1,
                            1 << 20);
}

void read_vit(const Fields& config, const Shapes& shapes,
              const OpenOptions& options, HuggingFaceConfig& result) {
  auto& vit = result.vit;
  check_only(config, "qkv_bias", config.boolean("qkv_bias"), true);
  check_only(config, "pooler_act", config.text("pooler_act"),
             std::string("tanh"));
  vit.layer = read_layer(config, options, 0.0);
  vit.layer.pre_norm = true;
  vit.layers = check_layers(config, shapes, options, vit.layer);
  vit.image_size = read_square(config, "image_size");
  vit.patch_size = read_square(config, "patch_size");
  vit.channels = required(config, "num_channels");
  const std::string patches = "embeddings.patch_embeddings.projection.weight";
  shapes.size(config, "hidden_size", vit.layer.width, patches, 0);
  shapes.size(config, "num_channels", vit.channels, patches, 1);
  shapes.size(config, "patch_size", vit.patch_size, patches, 2);
  const auto side = vit.image_size / vit.patch_size;
  shapes.size(config, "image_size / patch_size, squared, and 1",
              1 + side * side, "embeddings.position_embeddings", 1);
  read_classifier(config, shapes, options,
                  result.architecture == "ViTForImageClassification", result,
                  vit.classes);
  vit.pooler = vit.classes == 0 && shapes.contains("pooler.dense.weight");
}

}  // namespace

HuggingFaceConfig read_config(const std::string& path, const std::string& text,
                              const io::Weights& weights,
                              const OpenOptions& options) {
  const Json json = io::parse_bounded_json<Json>(path, text);
  const Fields config(json, path);
  HuggingFaceConfig result;
  const std::string type = config.text("model_type").value_or("");
  TORCH_CHECK_VALUE(type == "bert" || type == "vit", config.place("model_type"),
                    ": expected bert or vit, got ", io::in_quotes(type));
  result.family = type == "bert" ? Family::kBert : Family::kVit;
  const bool bert = result.family == Family::kBert;
  const std::vector<std::string> known =
      bert ? std::vector<std::string>{"BertModel",
                                      "BertForSequenceClassification",
                                      "BertForMaskedLM", "BertForPreTraining"}
           : std::vector<std::string>{"ViTModel", "ViTForImageClassification"};
  result.architecture = known.front();
  if (const Json* list = config.find("architectures")) {
    TORCH_CHECK_VALUE(
        list->is_array() && list->size() == 1 && (*list)[0].is_string(),
        config.place("architectures"), ": expected an array of one name, got ",
        Fields::shown(*list));
    result.architecture = (*list)[0].get<std::string>();
    TORCH_CHECK_VALUE(
        std::ranges::find(known, result.architecture) != known.end(),
        config.place("architectures"), ": expected one of ",
        config::known_and_nearest(result.architecture, known), ", got ",
        io::in_quotes(result.architecture));
  }
  const Shapes shapes(weights, result.family);
  (bert ? read_bert : read_vit)(config, shapes, options, result);
  return result;
}

const models::EncoderLayerOptions& layer_of(const HuggingFaceConfig& config) {
  return config.family == Family::kBert ? config.bert.layer : config.vit.layer;
}

std::string change_config(const std::string& text,
                          const HuggingFaceConfig& config) {
  using Ordered = nlohmann::ordered_json;
  Ordered json = Ordered::parse(text);
  json["architectures"] = {config.architecture};
  const auto& layer = layer_of(config);
  if (layer.attention != "softmax") {
    json["luna"] = {{"attention", layer.attention},
                    {"attention_options",
                     config::detail::to_json(layer.attention_options)}};
  } else {
    json.erase("luna");
  }
  if (!config.labels.empty()) {
    Ordered names = Ordered::object(), numbers = Ordered::object();
    for (size_t i = 0; i < config.labels.size(); ++i) {
      names[std::to_string(i)] = config.labels[i];
      numbers[config.labels[i]] = i;
    }
    if (config.labels.size() == 1) json["problem_type"] = "regression";
    json["id2label"] = names;
    json["label2id"] = numbers;
  }
  return json.dump(2) + "\n";
}

}  // namespace luna::convert
