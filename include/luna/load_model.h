#pragma once

#include <luna/convert/hugging_face.h>

namespace luna {

/// The BERT or ViT of a Hugging Face folder, with the attention that its
/// config.json names: what `luna convert`, luna.hf and transformers write.
/// HuggingFaceModel::open can swap attention and classifier on the way.
inline convert::HuggingFaceModel load_model(const std::string& path) {
  return convert::HuggingFaceModel::open(path);
}

}  // namespace luna
