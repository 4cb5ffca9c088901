#include <ATen/ATen.h>
#include <fmt/format.h>

#include <memory>

#include "luna/io/atomic.h"
#include "luna/io/safetensors.h"
#include "model_input.h"

namespace luna::cli {
namespace {

struct Options {
  ModelInput input{};
  std::string inputs{};
  std::string out{};
};

/// Under the names that transformers' outputs have.
void add_hidden(const std::vector<at::Tensor>& hidden, io::NamedTensors& all) {
  for (size_t i = 0; i < hidden.size(); ++i) {
    all.emplace_back(fmt::format("hidden_states.{}", i), hidden[i]);
  }
}

void add_if_there(const char* name, const at::Tensor& tensor,
                  io::NamedTensors& all) {
  if (tensor.defined()) all.emplace_back(name, tensor);
}

models::BertInput read_tokens(const std::string& path) {
  const auto file = io::Safetensors::open(path);
  models::BertInput input{file.tensor("input_ids").to(at::kLong)};
  if (file.contains("token_type_ids")) {
    input.type_ids = file.tensor("token_type_ids").to(at::kLong);
  }
  if (file.contains("attention_mask")) {
    input.mask = file.tensor("attention_mask").to(at::kBool);
  }
  return input;
}

int run(const Options& options) {
  at::NoGradGuard no_grad;
  io::make_folders_above(options.out);
  const auto model = open_model(options.input);
  const bool given = !options.inputs.empty();
  io::NamedTensors all;
  if (!model.bert().is_empty()) {
    const auto input =
        given ? read_tokens(options.inputs) : make_tokens(options.input, model);
    auto bert = model.bert();
    const auto output = bert(input);
    if (!given) {
      all = {{"input_ids", input.ids},
             {"token_type_ids", *input.type_ids},
             {"attention_mask", *input.mask}};
    }
    add_hidden(output.hidden, all);
    all.emplace_back("last_hidden_state", output.hidden.back());
    add_if_there("pooler_output", output.pooled, all);
    add_if_there("logits", output.logits, all);
  } else {
    const auto pixels =
        given ? io::Safetensors::open(options.inputs).tensor("pixel_values")
              : make_pixels(options.input, model);
    auto vit = model.vit();
    const auto output = vit(pixels);
    if (!given) all = {{"pixel_values", pixels}};
    add_hidden(output.hidden, all);
    all.emplace_back("last_hidden_state", output.last);
    add_if_there("pooler_output", output.pooled, all);
    add_if_there("logits", output.logits, all);
  }
  io::write_safetensors(options.out, all);
  return kOk;
}

}  // namespace

Command add_encode(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "encode", "Write what a BERT or a ViT makes of text or pictures");
  app->allow_extras();
  app->footer(
      "Example:\n"
      "  luna encode path/to/bert --text 'One.' --text 'Two.' "
      "--out states.safetensors");
  const auto options = std::make_shared<Options>();
  add_model_input(*app, options->input);
  app->add_option("--inputs", options->inputs,
                  "A safetensors file with input_ids (and attention_mask, "
                  "token_type_ids) or pixel_values, instead of text or images");
  app->add_option("--out", options->out,
                  "Safetensors: hidden_states.N, last_hidden_state, "
                  "pooler_output, logits, and what text or images became")
      ->required();
  return {app, [options] { return run(*options); }};
}

}  // namespace luna::cli
