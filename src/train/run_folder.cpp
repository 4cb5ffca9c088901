#include "luna/train/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "config/json.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

}  // namespace

std::string RunFolder::checkpoint(int64_t step) const {
  return fmt::format("{}/{}{:08}", checkpoints(), kPrefix, step);
}

bool RunFolder::holds_run() const { return fs::exists(config()); }

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

std::string config_text(const TrainConfig& config) {
  return config::write_json(config).dump(2) + "\n";
}

}  // namespace luna::train
