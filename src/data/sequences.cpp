#include "data/sequences.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace luna::data {
void check_info(const std::string& where, const TaskInfo& info) {
  TORCH_CHECK_VALUE(!info.task.empty(), where,
                    ": expected a task with a name, got none");
  TORCH_CHECK_VALUE(info.vocabulary >= 1 && info.vocabulary <= 256, where,
                    ": vocabulary: expected 1 to 256 (an id is a byte), got ",
                    info.vocabulary);
  TORCH_CHECK_VALUE(info.classes >= 1, where,
                    ": classes: expected at least 1, got ", info.classes);
  TORCH_CHECK_VALUE((info.height == 0) == (info.width == 0) &&
                        info.height >= 0 && info.width >= 0 &&
                        info.height <= 1 << 15 && info.width <= 1 << 15,
                    where,
                    ": height and width: expected both 0 or both 1 to 32768, "
                    "got ",
                    info.height, " and ", info.width);
  TORCH_CHECK_VALUE(
      info.channels == 1 || (info.channels == 3 && info.height > 0), where,
      ": channels: expected 1, or 3 of a picture, got ", info.channels);
}

void check_length(const std::string& where, const TaskInfo& info,
                  int64_t length) {
  TORCH_CHECK_VALUE(info.height == 0 || length == picture_size(info), where,
                    ": expected a picture of ", info.channels, " x ",
                    info.height, " x ", info.width, " values, got ", length,
                    " ids");
}

void check_ids(const std::string& where, const TaskInfo& info,
               std::span<const uint8_t> ids) {
  if (info.vocabulary > 255 || ids.empty()) return;
  uint8_t highest = 0;  // a loop that is vectorised, unlike max_element
  for (const uint8_t id : ids) highest = std::max(highest, id);
  TORCH_CHECK_VALUE(highest < info.vocabulary, where,
                    ": expected ids below the vocabulary of ", info.vocabulary,
                    ", got ", int{highest});
}

void check_label(const std::string& where, const TaskInfo& info,
                 int64_t label) {
  TORCH_CHECK_VALUE(label >= 0 && label < info.classes, where,
                    ": label: expected 0 to ", info.classes - 1, ", got ",
                    label);
}

int64_t check_samples(const std::string& where, const TaskInfo& info,
                      const FlatSamples& samples) {
  const int64_t sequences = sequences_of(info) * std::ssize(samples.labels);
  TORCH_CHECK_VALUE(std::ssize(samples.offsets) == sequences + 1, where,
                    ": offsets: expected ", sequences + 1, " of them for ",
                    samples.labels.size(), " samples, got ",
                    samples.offsets.size());
  TORCH_CHECK_VALUE(samples.offsets.front() == 0 &&
                        samples.offsets.back() == std::ssize(samples.ids),
                    where, ": offsets: expected 0 to ", samples.ids.size(),
                    ", got ", samples.offsets.front(), " to ",
                    samples.offsets.back());
  int64_t longest = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t length = samples.offsets[s + 1] - samples.offsets[s];
    TORCH_CHECK_VALUE(length >= 0, where, ": offsets: expected a rising row, ",
                      "got ", samples.offsets[s + 1], " after ",
                      samples.offsets[s]);
    check_length(where, info, length);
    longest = std::max(longest, length);
  }
  check_ids(where, info, samples.ids);
  for (const int64_t label : samples.labels) check_label(where, info, label);
  return longest;
}

Sample sample_at(const TaskInfo& info, const FlatSamples& samples,
                 int64_t index) {
  TORCH_CHECK_INDEX(index >= 0 && index < std::ssize(samples.labels),
                    "Dataset: index: expected 0 to ",
                    std::ssize(samples.labels) - 1, ", got ", index);
  const auto sequence = [&](int64_t s) {
    return samples.ids.subspan(samples.offsets[s],
                               samples.offsets[s + 1] - samples.offsets[s]);
  };
  const int64_t first = sequences_of(info) * index;
  return {
      .ids = sequence(first),
      .second = info.pairs ? sequence(first + 1) : std::span<const uint8_t>{},
      .label = samples.labels[index]};
}

}  // namespace luna::data
