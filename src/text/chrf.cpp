#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <luna/version.h>

#include "luna/text/bleu.h"
#include "text/score_lines.h"
#include "text/unicode.h"

namespace luna::text {
namespace {

/// Of one order: n-grams of the translation, of the reference, of both.
struct Matches {
  int64_t own = 0, wanted = 0, both = 0;
};
using Statistics = std::vector<Matches>;

bool is_ascii_punctuation(char c) {
  return c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') &&
         !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
}

/// A word with a mark at its end, or else at its start, is two words.
std::vector<std::string_view> words_and_marks(std::string_view line) {
  std::vector<std::string_view> result;
  for (const std::string_view word : python_split(line)) {
    size_t behind_first = 0;
    next_character(word, behind_first);
    if (behind_first == word.size()) {
      result.push_back(word);
    } else if (is_ascii_punctuation(word.back())) {
      result.push_back(word.substr(0, word.size() - 1));
      result.push_back(word.substr(word.size() - 1));
    } else if (is_ascii_punctuation(word.front())) {
      result.push_back(word.substr(0, 1));
      result.push_back(word.substr(1));
    } else {
      result.push_back(word);
    }
  }
  return result;
}

/// A line's n-grams of characters, then of words.
class LineNgrams {
 public:
  LineNgrams(std::string_view line, const ChrfOptions& options)
      : words_(words_and_marks(line)) {
    for (const std::string_view word : python_split(line)) {
      for (size_t i = 0; i < word.size();) {
        characters_ += next_character(word, i);
      }
    }
    counts_.resize(options.characters);
    for (int n = 1; n <= options.characters; ++n) {
      for (size_t i = 0; i + n <= characters_.size(); ++i) {
        ++counts_[n - 1][std::u32string_view(characters_).substr(i, n)];
      }
    }
    word_counts_.resize(options.words);
    for (int n = 1; n <= options.words; ++n) {
      for (int64_t i = 0; i + n <= words_.size(); ++i) {
        ++word_counts_[n - 1][words_.ngram(i, n)];
      }
    }
  }
  LineNgrams(const LineNgrams&) = delete;  // the keys are views of members
  LineNgrams& operator=(const LineNgrams&) = delete;

  Statistics compare(const LineNgrams& reference) const {
    Statistics result;
    for (size_t n = 0; n < counts_.size(); ++n) {
      result.push_back(matches(counts_[n], reference.counts_[n]));
    }
    for (size_t n = 0; n < word_counts_.size(); ++n) {
      result.push_back(matches(word_counts_[n], reference.word_counts_[n]));
    }
    return result;
  }

 private:
  template <class Counts>
  static Matches matches(const Counts& own, const Counts& wanted) {
    Matches result;
    for (const auto& [ngram, count] : wanted) result.wanted += count;
    if (result.wanted == 0) return result;
    for (const auto& [ngram, count] : own) {
      result.own += count;
      const auto found = wanted.find(ngram);
      if (found != wanted.end()) result.both += std::min(count, found->second);
    }
    return result;
  }

  std::u32string characters_{};
  SpacedWords words_;
  std::vector<std::unordered_map<std::u32string_view, int64_t>> counts_{};
  std::vector<std::unordered_map<std::string_view, int64_t>> word_counts_{};
};

double f_score(const Statistics& statistics, double beta) {
  double precision = 0, recall = 0;
  int orders = 0;
  for (const Matches& m : statistics) {
    if (m.own == 0 || m.wanted == 0) continue;
    precision += static_cast<double>(m.both) / static_cast<double>(m.own);
    recall += static_cast<double>(m.both) / static_cast<double>(m.wanted);
    ++orders;
  }
  if (precision + recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  const double factor = beta * beta;
  return 100 * (1 + factor) * precision * recall /
         (factor * precision + recall);
}

}  // namespace

double chrf(const Lines& lines, std::span<const Lines> references,
            const ChrfOptions& options) {
  TORCH_CHECK_VALUE(
      options.characters >= 0 && options.words >= 0 &&
          options.characters + options.words > 0 && options.beta > 0,
      "chrf: expected an order of n-grams and a beta above 0, "
      "got characters ",
      options.characters, ", words ", options.words, ", beta ", options.beta);
  check_lines("chrf", lines, references);
  Statistics sum(options.characters + options.words);
  for (size_t i = 0; i < lines.size(); ++i) {
    const LineNgrams own(lines[i], options);
    Statistics best;
    double best_score = -1;
    for (const Lines& reference : references) {
      Statistics found = own.compare(LineNgrams(reference[i], options));
      const double score = f_score(found, options.beta);
      if (score > best_score) {
        best_score = score;
        best = std::move(found);
      }
    }
    for (size_t n = 0; n < sum.size(); ++n) {
      sum[n].own += best[n].own;
      sum[n].wanted += best[n].wanted;
      sum[n].both += best[n].both;
    }
  }
  return f_score(sum, options.beta);
}

std::string chrf_signature(size_t references, const ChrfOptions& options) {
  return fmt::format(
      "nrefs:{}|case:mixed|eff:yes|nc:{}|nw:{}|space:no|version:luna-{}",
      references, options.characters, options.words, version());
}

std::string chrf_name(const ChrfOptions& options) {
  return fmt::format("chrF{}", options.beta) + std::string(options.words, '+');
}

}  // namespace luna::text
