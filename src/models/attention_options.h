#pragma once

#include <luna/models/model_config.h>

namespace luna::models {

/// What the config's mechanism is built with: its attention_options, and the
/// model's attention_dropout where it has a map to drop from.
config::OptionMap attention_options(const ModelConfig& config);

/// Whether a memory keeps no more rows than the sequence has tokens. The
/// encoder sees to it, once for all layers: they are told not to.
bool take_dynamic_projection(config::OptionMap& options);

}  // namespace luna::models
