#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace luna::train {

/// From the first to the last, both of them.
struct Seeds {
  int64_t first = 1;
  int64_t last = 1;

  bool contains(int64_t seed) const { return first <= seed && seed <= last; }
};

/// A config of a sweep.
struct SweepConfig {
  std::string file{};
  Seeds seeds{};
  std::vector<std::string> overrides{};  ///< put over what the file says
  std::string where{};  ///< "runs.txt:3: ", the line of a list, before errors
};

/// What the words of a command line ask for:
///
///     FILE       with `seeds`
///     FILE:3     with seeds 1 to 3
///     FILE:2-3   with seeds 2 and 3
///     @LIST      a text file with one of those a line, paths from its own
///                folder on, assignments behind ("patience=8"); from # on a
///                line is a comment
///
/// Errors name the word, or the list's file and line.
std::vector<SweepConfig> read_sweep_configs(
    const std::vector<std::string>& words, Seeds seeds);

}  // namespace luna::train
