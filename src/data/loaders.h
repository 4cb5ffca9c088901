#pragma once

#include <luna/data/tasks.h>

// What the table of tasks calls: one loader a task.

namespace luna::data {

Splits load_listops(const Task& task, const LoadOptions& options);
Splits load_pathfinder(const Task& task, const LoadOptions& options);
Splits load_needles(const Task& task, const LoadOptions& options);
Splits load_text(const Task& task, const LoadOptions& options);
Splits load_cifar10(const Task& task, const LoadOptions& options);
Splits load_retrieval(const Task& task, const LoadOptions& options);
Splits load_retrieval_imdb(const Task& task, const LoadOptions& options);

/// What can be set of Pathfinder: `preset`, and what a preset sets.
std::vector<config::OptionInfo> pathfinder_settings();

void adjust_listops(const config::OptionMap& settings, TaskFacts& facts);
void adjust_needles(const config::OptionMap& settings, TaskFacts& facts);
void adjust_pathfinder(const config::OptionMap& settings, TaskFacts& facts);

/// How many ids of a sequence are kept; 0: all.
inline int64_t kept_length(const Task& task, const LoadOptions& options) {
  return options.max_length < 0 ? task.max_length : options.max_length;
}

/// A text's bytes, cut on the right.
inline std::span<const uint8_t> text_ids(std::string_view text,
                                         int64_t max_length) {
  const auto count = static_cast<size_t>(max_length);
  if (max_length > 0 && text.size() > count) text = text.substr(0, count);
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace luna::data
