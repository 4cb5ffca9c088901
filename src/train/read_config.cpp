#include <luna/io/text_file.h>
#include <luna/train/read_config.h>

#include "config/json.h"

namespace luna::train {

TrainConfig read_train_config(const std::string& path,
                              const std::vector<std::string>& overrides) {
  auto json = config::parse_json(io::read_text(path), path);
  for (const auto& assignment : overrides) {
    config::set_value(json, assignment);
  }
  return config::read_json<TrainConfig>(path, json);
}

}  // namespace luna::train
