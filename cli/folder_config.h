#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace luna::cli {

/// A folder's config.json if that is an object, to look into: of a run, of a
/// model of transformers or of anybody; else an empty object.
nlohmann::json folder_config(const std::string& folder);

}  // namespace luna::cli
