#include "luna/text/bleu.h"

#include <fmt/format.h>
#include <luna/version.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "text/bleu_tokens.h"
#include "text/score_lines.h"

namespace luna::text {
namespace {

/// How often each n-gram occurs in the words of a line, by order.
struct NgramCounts {
  explicit NgramCounts(const std::string& line) : words(python_split(line)) {
    for (int n = 1; n <= kBleuOrder; ++n) {
      for (int64_t i = 0; i + n <= words.size(); ++i) {
        ++counts[n - 1][words.ngram(i, n)];
      }
    }
  }
  NgramCounts(const NgramCounts&) = delete;  // the keys are views of words
  NgramCounts& operator=(const NgramCounts&) = delete;

  SpacedWords words;
  std::array<std::unordered_map<std::string_view, int64_t>, kBleuOrder>
      counts{};
};

void add_line(const std::string& line,
              const std::vector<std::string>& references, BleuScore& score) {
  const NgramCounts own(line);
  std::array<std::unordered_map<std::string, int64_t>, kBleuOrder> most;
  int64_t nearest = -1;
  for (const std::string& reference : references) {
    const NgramCounts counts(reference);
    const int64_t size = counts.words.size();
    const auto distance = [&](int64_t s) {
      return std::pair(std::abs(own.words.size() - s), s);
    };
    if (nearest < 0 || distance(size) < distance(nearest)) nearest = size;
    for (int n = 0; n < kBleuOrder; ++n) {
      for (const auto& [ngram, count] : counts.counts[n]) {
        int64_t& highest = most[n][std::string(ngram)];
        highest = std::max(highest, count);
      }
    }
  }
  score.length += own.words.size();
  score.reference_length += nearest;
  for (int n = 0; n < kBleuOrder; ++n) {
    for (const auto& [ngram, count] : own.counts[n]) {
      score.totals[n] += count;
      const auto found = most[n].find(std::string(ngram));
      if (found != most[n].end()) {
        score.matches[n] += std::min(count, found->second);
      }
    }
  }
}

void finish(const BleuOptions& options, BleuScore& score) {
  if (score.length < score.reference_length) {
    score.brevity_penalty =
        score.length == 0
            ? 0
            : std::exp(1 - static_cast<double>(score.reference_length) /
                               static_cast<double>(score.length));
  }
  if (std::ranges::all_of(score.matches, [](int64_t m) { return m == 0; })) {
    return;
  }
  int order = kBleuOrder;
  double halved = 1;
  for (int n = 0; n < kBleuOrder; ++n) {
    const auto total = static_cast<double>(score.totals[n]);
    if (total == 0) break;
    if (options.effective_order) order = n + 1;
    if (score.matches[n] > 0) {
      score.precisions[n] = 100 * static_cast<double>(score.matches[n]) / total;
    } else if (options.smooth) {
      halved *= 2;
      score.precisions[n] = 100 / (halved * total);
    }
  }
  double sum = 0;
  for (int n = 0; n < order; ++n) {
    if (score.precisions[n] == 0) return;
    sum += std::log(score.precisions[n]);
  }
  score.score = score.brevity_penalty * std::exp(sum / order);
}

}  // namespace

BleuScore bleu(const Lines& lines, std::span<const Lines> references,
               const BleuOptions& options) {
  check_lines("bleu", lines, references);
  const auto prepared = [&](const std::string& line) {
    return bleu_tokenize(python_rstrip(line), options.tokens);
  };
  BleuScore score;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::vector<std::string> wanted;
    for (const Lines& reference : references) {
      wanted.push_back(prepared(reference[i]));
    }
    add_line(prepared(lines[i]), wanted, score);
  }
  finish(options, score);
  return score;
}

std::string bleu_signature(size_t references, const BleuOptions& options) {
  const char* const names[] = {"13a", "intl", "char", "none"};
  return fmt::format(
      "nrefs:{}|case:mixed|eff:{}|tok:{}|smooth:{}|version:luna-{}", references,
      options.effective_order ? "yes" : "no",
      names[static_cast<int>(options.tokens)], options.smooth ? "exp" : "none",
      version());
}

}  // namespace luna::text
