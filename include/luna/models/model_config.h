#pragma once

#include <luna/config/options.h>

#include <cstdint>
#include <string>

namespace luna::models {

/// A classifier or translator over a stack of layers; every field is a key of
/// the config.
struct ModelConfig {
  std::string base{};
  std::string attention = "universal";
  config::OptionMap attention_options{};
  int64_t layers = 2;
  int64_t width = 64;
  int64_t ffn = 128;
  int64_t heads = 2;
  int64_t local = 0;
  std::string local_shape = "line";
  int64_t memory_length = 16;
  bool contextual_memory = true;
  std::string source_attention = "same";
  std::string norm = "pre";
  std::string embedding = "table";
  std::string black = "pixel";
  bool embedding_norm = false;
  int64_t patch = 0;
  std::string positions = "learned";
  int64_t max_positions = 0;
  std::string activation = "gelu";
  double dropout = 0.1;
  double attention_dropout = 0.0;
  double activation_dropout = 0.0;
  std::string pooling = "mean";
  std::string head = "linear";
  int64_t head_hidden = 0;
  std::string pair_features = "full";
  std::string init = "torch";

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.base,
          {.name = "base",
           .help = "folder of a Hugging Face BERT or ViT to start from; what "
                   "it is made of is then in that folder, all but attention "
                   "and attention_options"});
    visit(self.attention,
          {.name = "attention", .help = "a mechanism of the registry"});
    visit(self.attention_options,
          {.name = "attention_options", .help = "options of that mechanism"});
    visit(self.layers, {.name = "layers", .help = "layers", .minimum = 1});
    visit(self.width, {.name = "width", .help = "model width", .minimum = 1});
    visit(self.ffn,
          {.name = "ffn", .help = "hidden width of the FFN", .minimum = 1});
    visit(self.heads,
          {.name = "heads", .help = "heads of attention", .minimum = 1});
    visit(self.local,
          {.name = "local",
           .help = "taps of a depthwise convolution over the values, added to "
                   "what attention gives; odd; 0: none",
           .minimum = 0});
    visit(self.local_shape,
          {.name = "local_shape",
           .help = "its taps: neighbours in the sequence (line), or, of "
                   "pictures, in rows and columns (square)",
           .choices = {"line", "square"}});
    visit(self.memory_length,
          {.name = "memory_length",
           .help = "rows of the packed memory, for mechanisms that have one",
           .minimum = 1});
    visit(self.contextual_memory,
          {.name = "contextual_memory",
           .help = "a layer's packed memory is what the layer before made of "
                   "its own; false: a parameter of each layer"});
    visit(self.source_attention,
          {.name = "source_attention",
           .help = "how a translator's decoder reads the source: as it reads "
                   "its own tokens (same), or by softmax, whose step takes "
                   "time by the source's length",
           .choices = {"same", "softmax"}});
    visit(self.norm, {.name = "norm",
                      .help = "LayerNorm before each block or after it",
                      .choices = {"pre", "post"}});
    visit(self.embedding,
          {.name = "embedding",
           .help = "how an id becomes a vector: a row of its own (table), or, "
                   "of pictures, whose ids are grey values, a point between "
                   "black's and white's (line)",
           .choices = {"table", "line"}});
    visit(
        self.black,
        {.name = "black",
         .help = "of pictures: what black, the id 0, is: a pixel like others, "
                 "or padding, which nobody attends to and no mean counts",
         .choices = {"pixel", "padding"}});
    visit(self.embedding_norm,
          {.name = "embedding_norm", .help = "LayerNorm on the embeddings"});
    visit(self.patch,
          {.name = "patch",
           .help = "side of the patches of a ViT, for pictures in colour; 0: "
                   "no ViT, ids are read one by one",
           .minimum = 0});
    visit(self.positions, {.name = "positions",
                           .help = "kind of position embedding",
                           .choices = {"learned", "sinusoidal", "none"}});
    visit(self.max_positions,
          {.name = "max_positions",
           .help = "rows of learned positions; 0: two more than the longest "
                   "sequence has ids, room for specials",
           .minimum = 0});
    visit(self.activation, {.name = "activation",
                            .help = "of the FFN",
                            .choices = {"gelu", "relu"}});
    visit(self.dropout, {.name = "dropout",
                         .help = "on embeddings and on every block's output",
                         .minimum = 0,
                         .maximum = 1});
    visit(self.attention_dropout,
          {.name = "attention_dropout",
           .help = "on attention maps, for mechanisms that have one",
           .minimum = 0,
           .maximum = 1});
    visit(self.activation_dropout, {.name = "activation_dropout",
                                    .help = "inside the FFN",
                                    .minimum = 0,
                                    .maximum = 1});
    visit(self.pooling, {.name = "pooling",
                         .help = "what of the last layer is classified",
                         .choices = {"cls", "mean", "memory"}});
    visit(self.head, {.name = "head",
                      .help = "linear, or mlp: ReLU(Linear), then Linear "
                              "without bias",
                      .choices = {"linear", "mlp"}});
    visit(self.head_hidden, {.name = "head_hidden",
                             .help = "hidden width of the mlp head",
                             .minimum = 0});
    visit(self.pair_features,
          {.name = "pair_features",
           .help = "pairs: concat [a, b], or full [a, b, a*b, a-b]",
           .choices = {"concat", "full"}});
    visit(self.init, {.name = "init",
                      .help = "start of the weights: torch's own with "
                              "embeddings normal, 0.02; xavier (the nested "
                              "paper's); bert (all normal, 0.02)",
                      .choices = {"torch", "xavier", "bert"}});
  }
};

}  // namespace luna::models
