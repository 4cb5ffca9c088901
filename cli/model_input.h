// What a Hugging Face model is given on the command line.
#pragma once

#include <luna/convert/bert_batch.h>
#include <luna/convert/hugging_face.h>

#include <string>
#include <vector>

#include "command.h"

namespace luna::cli {

struct ModelInput {
  std::string model{};
  std::vector<std::string> texts{}, pairs{}, images{};
  int64_t max_length = 0;
};

void add_model_input(CLI::App& app, ModelInput& input);

/// The folder's model; weights that it has no use for are said on stderr.
convert::HuggingFaceModel open_model(const ModelInput& input);

/// What was typed, as tensors: pictures for a ViT, text for a BERT.
at::Tensor make_pixels(const ModelInput& input,
                       const convert::HuggingFaceModel& model);
models::BertInput make_tokens(const ModelInput& input,
                              const convert::HuggingFaceModel& model);

}  // namespace luna::cli
