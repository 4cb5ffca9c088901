#pragma once

#include <luna/models/translator.h>

#include <functional>
#include <vector>

namespace luna::models {

struct BeamOptions {
  int64_t beam = 4;             ///< 1: greedy
  double length_penalty = 1.0;  ///< scores are divided by length to this power
  int64_t n_best = 1;           ///< of each sentence, at most `beam`
  int64_t no_repeat_ngram = 0;  ///< no n-gram of so many tokens twice; 0: any
  /// A translation has at most max_ratio tokens for each of the source's and
  /// max_extra more; then it is ended.
  double max_ratio = 2.0;
  int64_t max_extra = 20;
  int64_t start = 1, end = 2;  ///< ids of <s> and </s>
};

struct Hypothesis {
  std::vector<int64_t> ids{};  ///< without <s> and </s>
  double score = 0;            ///< log-probability, </s> counted, divided by
                               ///< its tokens to the length penalty
};

/// What a search took.
struct SearchCost {
  int64_t steps = 0;
  int64_t state_bytes = 0;  ///< of the decoder for one row, at its largest
};

/// The best translations of each sentence, the best first. What a sentence
/// becomes does not depend on those beside it, but for rounding. Sets the model
/// to eval(). `stop` is asked at each step; true ends the search, with nothing
/// found.
std::vector<std::vector<Hypothesis>> beam_search(
    Translator& model, const data::Sequences& source,
    const BeamOptions& options = {}, SearchCost* cost = nullptr,
    const std::function<bool()>& stop = {});

}  // namespace luna::models
