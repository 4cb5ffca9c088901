#pragma once

#include <luna/data/dataset.h>

#include <array>
#include <functional>
#include <memory>
#include <string>

namespace luna::data {

/// Names of a task's splits, which are those of its files, too.
inline constexpr std::array<const char*, 3> kSplitNames = {
    "train", "validation", "test"};

struct Splits {
  std::shared_ptr<Dataset> train{}, validation{}, test{};
  std::string source{};  ///< what was read or generated, in words

  /// In the order of kSplitNames.
  std::array<std::shared_ptr<Dataset>, 3> all() const {
    return {train, validation, test};
  }
};

/// Told the share that is done and what is being done; may throw to stop.
using LoadProgress = std::function<void(double, const std::string&)>;

}  // namespace luna::data
