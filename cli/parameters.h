// A model's parameters by part, as every command shows them.
#pragma once

#include <luna/models/parameter_counts.h>

#include <nlohmann/json.hpp>
#include <string>

namespace luna::cli {

std::string parameters_text(const models::ParameterCounts& counts);
nlohmann::ordered_json parameters_json(const models::ParameterCounts& counts);

}  // namespace luna::cli
