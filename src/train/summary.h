#pragma once

#include <luna/train/trainer.h>

#include <nlohmann/json.hpp>
#include <optional>

namespace luna::train {

/// summary.json; with the test's figures once there are some.
nlohmann::ordered_json summary_json(const TrainConfig& config,
                                    const RunState& state,
                                    const models::Model& model,
                                    const Splits& splits,
                                    const std::optional<Evaluation>& test);

}  // namespace luna::train
