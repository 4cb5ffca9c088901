#include "io/folder_config.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include "io/bounded_json.h"
#include "luna/io/text_file.h"

namespace luna::io {

nlohmann::json folder_config(const std::string& folder) {
  const auto path = std::filesystem::path(folder) / "config.json";
  if (std::filesystem::exists(path)) {
    try {
      auto config = parse_bounded_json<nlohmann::json>(
          path.string(), read_text(path.string()));
      if (config.is_object()) return config;
    } catch (const c10::Error&) {  // who needs it refuses it
    } catch (const nlohmann::json::exception&) {
    }
  }
  return nlohmann::json::object();
}

bool is_hugging_face(const std::string& folder) {
  return folder_config(folder).contains("model_type");
}

}  // namespace luna::io
