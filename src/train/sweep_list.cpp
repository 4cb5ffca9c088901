#include "luna/train/sweep_list.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>

#include "luna/io/text_file.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

/// "3" or "2-3".
std::optional<Seeds> seeds_of(std::string_view text) {
  const size_t dash = text.find('-');
  const bool is_range = dash != std::string_view::npos;
  const auto first = is_range ? whole_number(text.substr(0, dash)) : 1;
  const auto last = whole_number(is_range ? text.substr(dash + 1) : text);
  if (!first || !last || *first < 0 || *last < *first) return {};
  return Seeds{*first, *last};
}

/// `where` is put in front of errors; `folder` in front of relative paths.
SweepConfig config_of(const std::string& word, Seeds seeds,
                      const std::string& where, const fs::path& folder) {
  const auto path = [&](const std::string& name) {
    return (folder / name).lexically_normal().string();
  };
  const size_t colon = word.rfind(':');
  // A file may have a colon in its name.
  if (colon == std::string::npos || fs::exists(path(word))) {
    return {.file = path(word), .seeds = seeds};
  }
  const auto own = seeds_of(std::string_view(word).substr(colon + 1));
  TORCH_CHECK_VALUE(own, where,
                    "expected CONFIG, CONFIG:3 (seeds 1 to 3) or CONFIG:2-3, "
                    "got ",
                    word);
  return {.file = path(word.substr(0, colon)), .seeds = *own};
}

std::vector<SweepConfig> read_list(const std::string& file, Seeds seeds) {
  std::vector<SweepConfig> configs;
  std::istringstream lines(io::read_text(file));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = fmt::format("{}:{}: ", file, ++number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    SweepConfig config =
        config_of(word, seeds, where, fs::path(file).parent_path());
    while (words >> word) {
      TORCH_CHECK_VALUE(word.find('=') != std::string::npos, where,
                        "expected KEY=VALUE behind the config, got ", word);
      config.overrides.push_back(word);
    }
    config.where = where;
    configs.push_back(std::move(config));
  }
  TORCH_CHECK_VALUE(!configs.empty(), file,
                    ": expected a list of configs, one a line, got none");
  return configs;
}

}  // namespace

std::vector<SweepConfig> read_sweep_configs(
    const std::vector<std::string>& words, Seeds seeds) {
  std::vector<SweepConfig> configs;
  for (const std::string& word : words) {
    if (!word.starts_with('@')) {
      configs.push_back(config_of(word, seeds, "", ""));
      continue;
    }
    for (SweepConfig& config : read_list(word.substr(1), seeds)) {
      configs.push_back(std::move(config));
    }
  }
  return configs;
}

}  // namespace luna::train
