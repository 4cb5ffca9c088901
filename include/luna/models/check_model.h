#pragma once

#include <luna/models/model_config.h>

namespace luna::models {

/// Refuses a config of which no model can be made, whatever the task: values
/// out of range, an unknown mechanism or option of it, fields that contradict
/// each other. `where` starts the message: "run.json: model".
void check_model(const std::string& where, const ModelConfig& config);

}  // namespace luna::models
