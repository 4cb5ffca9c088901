#pragma once

#include <luna/data/dataset.h>

#include <span>
#include <string>

namespace luna::data {

/// A split as flat arrays; who owns them is another's matter.
struct FlatSamples {
  std::span<const uint8_t> ids{};
  std::span<const int64_t> offsets{};  ///< sequences + 1
  std::span<const int64_t> labels{};
};

/// Sequences in each sample.
inline int64_t sequences_of(const TaskInfo& info) { return info.pairs ? 2 : 1; }

/// Refuses a task that makes no sense; `where` starts the message.
void check_info(const std::string& where, const TaskInfo& info);

/// Refuses arrays that do not fit the task or each other: offsets that fall,
/// ids beyond the vocabulary, labels beyond the classes, pictures of another
/// size. Returns the longest sequence.
int64_t check_samples(const std::string& where, const TaskInfo& info,
                      const FlatSamples& samples);

/// Refuse what cannot be a sequence or a label of the task.
void check_length(const std::string& where, const TaskInfo& info,
                  int64_t length);
void check_ids(const std::string& where, const TaskInfo& info,
               std::span<const uint8_t> ids);
void check_label(const std::string& where, const TaskInfo& info, int64_t label);

Sample sample_at(const TaskInfo& info, const FlatSamples& samples,
                 int64_t index);

}  // namespace luna::data
