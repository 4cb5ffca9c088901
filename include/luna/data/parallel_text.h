#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace luna::data {

/// What is done to both sides, and which pairs are left out. Lengths are in
/// characters: the text is not cut into tokens yet.
struct ParallelOptions {
  bool nfc = true;                 ///< Unicode's canonical composition
  bool squeeze_space = true;       ///< one space for each row of white space
  bool plain_punctuation = false;  ///< quotes and dashes as ASCII has them
  bool drop_duplicates = true;     ///< of a pair, all but the first
  bool reverse = false;            ///< source and target change places
  int64_t max_characters = 2000;   ///< of either side; 0: any
  double max_ratio = 0;  ///< of the longer to the shorter side; 0: any
};

/// What became of the pairs that were read.
struct ParallelCounts {
  int64_t read = 0, kept = 0;
  int64_t not_utf8 = 0;  ///< a side is not UTF-8
  int64_t empty = 0;     ///< a side is empty or white space
  int64_t too_long = 0;
  int64_t uneven = 0;  ///< beyond max_ratio
  int64_t duplicates = 0;
};

/// Text as the options make it; it must be UTF-8.
std::string uniform(std::string_view text, const ParallelOptions& options);

/// A reason why pairs were left out, in words, and how many.
std::vector<std::pair<std::string, int64_t>> dropped(
    const ParallelCounts& counts);

/// Sentences and their translations, from files, added one after another.
class ParallelText {
 public:
  explicit ParallelText(ParallelOptions options = {});

  /// Lines of two files; plain, .gz or .xz. As many of each, or ValueError.
  void add_files(const std::string& source, const std::string& target);
  /// Two columns: source, tab, target; plain, .gz or .xz.
  void add_tsv(const std::string& path);
  void add(std::string_view source, std::string_view target);

  const std::vector<std::pair<std::string, std::string>>& pairs() const {
    return pairs_;
  }
  const ParallelCounts& counts() const { return counts_; }

 private:
  bool is_kept(const std::pair<std::string, std::string>& pair);

  ParallelOptions options_;
  ParallelCounts counts_{};
  std::vector<std::pair<std::string, std::string>> pairs_{};
  std::unordered_set<std::string> seen_{};
};

}  // namespace luna::data
