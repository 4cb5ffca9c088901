#include "model_input.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <luna/data/image_processor.h>
#include <luna/train/run_model.h>

namespace luna::cli {

void add_model_input(CLI::App& app, ModelInput& input) {
  app.add_option("model", input.model,
                 "A Hugging Face folder: config.json, safetensors, and the "
                 "tokenizer's or pre-processor's files; or a run of luna train "
                 "that started from one or trained a ViT")
      ->required();
  app.add_option("--text", input.texts, "Text for a BERT; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->expected(1);
  app.add_option("--pair", input.pairs,
                 "The second text of a pair: as many as --text")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->expected(1);
  app.add_option("--image", input.images,
                 "A PNG or JPEG file for a ViT; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->expected(1);
  app.add_option("--max-length", input.max_length,
                 "Cut texts to so many ids; 0: what the model can take")
      ->check(at_least(0));
}

convert::HuggingFaceModel open_model(const ModelInput& input) {
  auto model = train::open_trained(input.model);
  if (!model.unused().empty()) {
    fmt::print(stderr, "{}: {} tensors that {} has no use for: {}\n",
               input.model, model.unused().size(), model.architecture(),
               fmt::join(model.unused(), ", "));
  }
  return model;
}

at::Tensor make_pixels(const ModelInput& input,
                       const convert::HuggingFaceModel& model) {
  if (input.images.empty() || !input.texts.empty()) {
    throw UsageError("expected --image for a " + model.architecture());
  }
  const auto processor = data::ImageProcessor::open(model.folder());
  std::vector<at::Tensor> pictures;
  for (const std::string& path : input.images) {
    pictures.push_back(processor.process_file(path));
  }
  return at::stack(pictures);
}

models::BertInput make_tokens(const ModelInput& input,
                              const convert::HuggingFaceModel& model) {
  const bool paired =
      input.pairs.empty() || input.pairs.size() == input.texts.size();
  if (input.texts.empty() || !input.images.empty() || !paired) {
    throw UsageError(fmt::format(
        "expected --text for a {}, and as many --pair or none, got {} and {}",
        model.architecture(), input.texts.size(), input.pairs.size()));
  }
  const auto tokenizer = text::WordPiece::open(model.folder());
  const auto& config = model.bert()->config();
  TORCH_CHECK_VALUE(tokenizer.size() <= config.vocabulary, input.model,
                    ": expected a tokenizer of at most vocab_size = ",
                    config.vocabulary, " tokens, got ", tokenizer.size());
  std::vector<convert::Text> texts;
  for (size_t i = 0; i < input.texts.size(); ++i) {
    texts.push_back({input.texts[i]});
    if (!input.pairs.empty()) texts.back().second = input.pairs[i];
  }
  const int64_t most = input.max_length == 0
                           ? config.positions
                           : std::min(input.max_length, config.positions);
  return convert::make_bert_batch(tokenizer, texts, most);
}

}  // namespace luna::cli
