// config.json of a BERT or a ViT.
#pragma once

#include <luna/convert/hugging_face.h>

#include <string>
#include <vector>

#include "convert/weight_names.h"

namespace luna::convert {

/// What a config.json says, checked against the sizes of the weights, so that
/// no size is believed that the files do not have.
struct HuggingFaceConfig {
  Family family = Family::kBert;
  std::string architecture{};
  models::BertConfig bert{};
  models::VitConfig vit{};
  std::vector<std::string> labels{};
};

HuggingFaceConfig read_config(const std::string& path, const std::string& text,
                              const io::Weights& weights,
                              const OpenOptions& options);

/// `text` with what the options changed: architecture, labels, attention.
std::string change_config(const std::string& text,
                          const HuggingFaceConfig& config);

/// The attention of a layer, as it stands in config.json under "luna".
const models::EncoderLayerOptions& layer_of(const HuggingFaceConfig& config);

}  // namespace luna::convert
