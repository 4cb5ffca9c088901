#include "luna/data/token_dataset.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "data/sequences.h"

namespace luna::data {
namespace {

constexpr const char* kAdd = "TokenDataset::add";

}  // namespace

TokenDataset::TokenDataset(TaskInfo info) : info_(std::move(info)) {
  TORCH_CHECK_VALUE(info_.vocabulary > 0 && info_.classes > 0 && !info_.pairs,
                    "TokenDataset: expected a vocabulary, classes and single "
                    "sequences, got ",
                    info_.vocabulary, ", ", info_.classes,
                    info_.pairs ? " and pairs" : "");
}

void TokenDataset::add(std::span<const int32_t> tokens, int64_t label,
                       std::string_view text, double score) {
  check_label(kAdd, info_, label);
  TORCH_CHECK_VALUE(!tokens.empty(), kAdd, ": expected a token or more");
  const auto [least, most] = std::ranges::minmax(tokens);
  TORCH_CHECK_VALUE(least >= 0 && most < info_.vocabulary, kAdd,
                    ": expected tokens from 0 to ", info_.vocabulary - 1,
                    ", got ", least < 0 ? least : most);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  offsets_.push_back(std::ssize(tokens_));
  labels_.push_back(label);
  scores_.push_back(score);
  texts_.emplace_back(text);
  longest_ = std::max(longest_, std::ssize(tokens));
}

Sample TokenDataset::operator[](int64_t index) const {
  const int64_t begin = offsets_[index];
  return {
      .label = labels_[index],
      .tokens = std::span(tokens_).subspan(begin, offsets_[index + 1] - begin),
      .text = texts_[index],
      .score = scores_[index]};
}

}  // namespace luna::data
