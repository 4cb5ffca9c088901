#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace luna::io {

/// A folder's config.json if that is an object, to look into: of a run, of a
/// model of transformers or of anybody; else an empty object.
nlohmann::json folder_config(const std::string& folder);

/// Whether config.json is a model's of transformers and not a run's.
bool is_hugging_face(const std::string& folder);

}  // namespace luna::io
