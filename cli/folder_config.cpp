#include "folder_config.h"

#include <filesystem>

#include "luna/io/text_file.h"

namespace luna::cli {

nlohmann::json folder_config(const std::string& folder) {
  const auto path = std::filesystem::path(folder) / "config.json";
  if (std::filesystem::exists(path)) {
    auto config = nlohmann::json::parse(io::read_text(path.string()), nullptr,
                                        /*allow_exceptions=*/false);
    if (config.is_object()) return config;
  }
  return nlohmann::json::object();
}

}  // namespace luna::cli
