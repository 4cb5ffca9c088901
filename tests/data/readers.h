#pragma once

// What tests of the readers share: a folder with a task's own files.

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "luna/data/tasks.h"
#include "support/temporary_folder.h"

namespace luna::data {

namespace fs = std::filesystem;

inline std::string text_of(std::span<const uint8_t> ids) {
  return {ids.begin(), ids.end()};
}

/// All samples of a task as (label, text, second text), by split.
using Content = std::vector<std::multiset<std::string>>;
inline Content content(const Splits& splits) {
  Content all;
  for (const auto& split : splits.all()) {
    all.emplace_back();
    for (int64_t i = 0; i < split->size(); ++i) {
      const Sample s = (*split)[i];
      all.back().insert(fmt::format("{} {} | {}", s.label, text_of(s.ids),
                                    text_of(s.second)));
    }
  }
  return all;
}

class Readers : public testing::FolderTest {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  Splits load(const std::string& task, LoadOptions options = {}) {
    options.folder = folder_.string();
    return load_task(task, options);
  }

  /// The message, which must hold every one of `parts`.
  void expect_refused(const std::string& task,
                      const std::vector<std::string>& parts) {
    try {
      load(task);
      FAIL() << "expected an error with " << parts.front();
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
      }
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
};

}  // namespace luna::data
