#pragma once

#include <luna/io/safetensors.h>

#include <nlohmann/json.hpp>

namespace luna::testing {

/// A BertForSequenceClassification of two layers, 8 wide, and its weights.
nlohmann::ordered_json small_bert_config();
io::NamedTensors small_bert_weights();

/// A ViTModel of one layer, 8 wide, and its weights.
nlohmann::ordered_json small_vit_config();
io::NamedTensors small_vit_weights();

}  // namespace luna::testing
