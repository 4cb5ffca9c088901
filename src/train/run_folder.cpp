#include "luna/train/run_folder.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "config/json.h"
#include "io/folder_config.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

}  // namespace

std::string RunFolder::checkpoint(int64_t step) const {
  return fmt::format("{}/{}{:08}", checkpoints(), kPrefix, step);
}

bool RunFolder::holds_run() const {
  // A model's folder has its weights beside the config, whole or in shards.
  return fs::exists(config()) && !fs::exists(path_ + "/model.safetensors") &&
         !fs::exists(path_ + "/model.safetensors.index.json") &&
         !io::is_hugging_face(path_);
}

std::vector<int64_t> RunFolder::steps() const {
  std::vector<int64_t> steps;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(checkpoints(), none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const char* const end = name.data() + name.size();
    int64_t step = 0;
    const auto [stop, error] =
        std::from_chars(name.data() + kPrefix.size(), end, step);
    if (error == std::errc() && stop == end) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

void check_run_folder(const std::string& path) {
  if (RunFolder(path).holds_run()) return;
  std::string why = "no config.json";
  if (!fs::exists(path)) why = "no such folder";
  if (fs::is_regular_file(path)) why = "a file";
  if (fs::exists(path + "/config.json")) {
    why =
        io::is_hugging_face(path) ? "a Hugging Face folder" : "a run's weights";
  }
  std::string meant;
  fs::path whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // a slash at the end
  // RUN/best, RUN/config.json, RUN/checkpoints/step-N
  for (int up = 0; up < 2 && meant.empty(); ++up) {
    whole = whole.parent_path();
    if (!RunFolder(whole.string()).holds_run()) continue;
    meant = fs::path(path).is_absolute() ? whole.string()
                                         : fs::proximate(whole).string();
  }
  TORCH_CHECK_VALUE(false, path, ": not a run folder (", why, ")",
                    meant.empty() ? "" : "; did you mean " + meant + "?");
}

std::string config_text(const TrainConfig& config) {
  return config::write_json(config).dump(2) + "\n";
}

}  // namespace luna::train
