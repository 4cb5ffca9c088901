#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace luna::data {

/// What is to be known of a task before its samples are read.
struct TaskInfo {
  std::string task{};      ///< listops, text, image, pathfinder, ...
  int64_t vocabulary = 0;  ///< data ids are 0 ... vocabulary - 1; specials
                           ///< ([CLS], pad) come after them
  int64_t classes = 0;     ///< 1: no classes but a score
  bool pairs = false;      ///< each sample is two sequences
  int64_t height = 0;      ///< pictures: rows of `width` pixels; else 0
  int64_t width = 0;
  int64_t channels = 1;  ///< pictures: grey, or three planes, one after the
                         ///< other: red, green, blue
  std::string metric = "accuracy";  ///< or f1, matthews, pearson: what counts
};

/// Ids of a picture.
inline int64_t picture_size(const TaskInfo& info) {
  return info.channels * info.height * info.width;
}

/// Ids [CLS] and padding have: after the data's own.
inline int64_t cls_id(const TaskInfo& info) { return info.vocabulary; }
inline int64_t pad_id(const TaskInfo& info) { return info.vocabulary + 1; }
/// Rows of an embedding that serves data and specials.
inline int64_t embedding_rows(const TaskInfo& info) {
  return info.vocabulary + 2;
}

struct Sample {
  std::span<const uint8_t> ids{};     ///< one data id a byte
  std::span<const uint8_t> second{};  ///< pairs only
  int64_t label = 0;
  /// Instead of ids, where a vocabulary has more of them than a byte.
  std::span<const int32_t> tokens{};
  std::string_view text{};  ///< what the tokens were made of, to be shown
  double score = 0;         ///< instead of a label, where there are no classes
};

/// One split of a task, ready to be read in any order by any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual const TaskInfo& info() const = 0;
  virtual int64_t size() const = 0;
  virtual int64_t longest() const = 0;  ///< of all sequences
  /// Valid as long as the data set lives.
  virtual Sample operator[](int64_t index) const = 0;
};

}  // namespace luna::data
