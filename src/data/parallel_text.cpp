#include "luna/data/parallel_text.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "data/source_files.h"
#include "data/text_lines.h"
#include "text/plain_text.h"
#include "text/unicode.h"

namespace luna::data {
namespace {

int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::vector<std::pair<std::string, int64_t>> dropped(
    const ParallelCounts& counts) {
  return {{"not UTF-8", counts.not_utf8},
          {"empty", counts.empty},
          {"too long", counts.too_long},
          {"uneven lengths", counts.uneven},
          {"duplicates", counts.duplicates}};
}

ParallelText::ParallelText(ParallelOptions options) : options_(options) {
  TORCH_CHECK_VALUE(options.max_characters >= 0,
                    "ParallelText: max_characters: expected 0 or more, got ",
                    options.max_characters);
  TORCH_CHECK_VALUE(options.max_ratio == 0 || options.max_ratio >= 1,
                    "ParallelText: max_ratio: expected 0 or at least 1, got ",
                    options.max_ratio);
}

void ParallelText::add_files(const std::string& source,
                             const std::string& target) {
  const std::string source_text = read_source(source);
  const std::string target_text = read_source(target);
  const auto sources = lines_of(source_text);
  const auto targets = lines_of(target_text);
  TORCH_CHECK_VALUE(targets.size() == sources.size(), target, ": expected ",
                    sources.size(), " lines, as ", source, " has, got ",
                    targets.size());
  for (size_t i = 0; i < sources.size(); ++i) add(sources[i], targets[i]);
}

void ParallelText::add_tsv(const std::string& path) {
  const std::string text = read_source(path);
  int64_t number = 0;
  for (const std::string_view line : lines_of(text)) {
    ++number;
    const size_t tab = line.find('\t');
    const size_t tabs = std::ranges::count(line, '\t');
    TORCH_CHECK_VALUE(tabs == 1, path, ": line ", number,
                      ": expected two columns with a tab between them, got ",
                      tabs + 1);
    add(line.substr(0, tab), line.substr(tab + 1));
  }
}

void ParallelText::add(std::string_view source, std::string_view target) {
  ++counts_.read;
  if (options_.reverse) std::swap(source, target);
  if (!text::is_utf8(source) || !text::is_utf8(target)) {
    ++counts_.not_utf8;
    return;
  }
  std::pair pair(uniform(source, options_), uniform(target, options_));
  if (!is_kept(pair)) return;
  ++counts_.kept;
  pairs_.push_back(std::move(pair));
}

std::string uniform(std::string_view text, const ParallelOptions& options) {
  std::string result(text);
  if (options.nfc) result = text::to_nfc(result);
  if (options.plain_punctuation) result = text::plain_punctuation(result);
  if (options.squeeze_space) result = text::squeeze_space(result);
  return result;
}

bool ParallelText::is_kept(const std::pair<std::string, std::string>& pair) {
  const auto& [source, target] = pair;
  if (text::squeeze_space(source).empty() ||
      text::squeeze_space(target).empty()) {
    ++counts_.empty;
    return false;
  }
  const auto [shorter, longer] =
      std::minmax({count_characters(source), count_characters(target)});
  if (options_.max_characters > 0 && longer > options_.max_characters) {
    ++counts_.too_long;
    return false;
  }
  if (options_.max_ratio > 0 &&
      static_cast<double>(longer) >
          options_.max_ratio * static_cast<double>(shorter)) {
    ++counts_.uneven;
    return false;
  }
  // No side has a line's end, so that the two cannot be confused.
  if (options_.drop_duplicates &&
      !seen_.insert(source + "\n" + target).second) {
    ++counts_.duplicates;
    return false;
  }
  return true;
}

}  // namespace luna::data
