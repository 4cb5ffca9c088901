#pragma once

#include <luna/data/translation.h>
#include <luna/models/beam_search.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace luna::train {

struct TranslateOptions {
  models::BeamOptions search{};  ///< start and end are the specials'
  int64_t batch = 64;            ///< sentences at a time
  std::function<bool()> stop{};  ///< asked at each step of the search
};

/// Translations of a sentence, the best first.
using Hypotheses = std::vector<models::Hypothesis>;

/// What a model makes of sentences, given as ids without specials, in their
/// order; those of about equal length are searched together. Nothing if `stop`
/// said so. The model stays on its device.
std::optional<std::vector<Hypotheses>> translate(
    models::Translator& model, const data::TranslationSpecials& specials,
    const std::vector<std::vector<int32_t>>& sentences,
    const TranslateOptions& options, models::SearchCost* cost = nullptr);

/// A translation as one line of UTF-8: ends of lines become spaces, bytes that
/// are not UTF-8 U+FFFD.
std::string line_of(const text::Bpe& tokenizer,
                    const models::Hypothesis& hypothesis);

/// A run of translation, ready to translate.
struct OpenTranslator {
  std::shared_ptr<models::Translator> model{};
  text::Bpe tokenizer;
  data::TranslationSpecials specials{};
  data::ParallelOptions text{};  ///< how its data was made uniform
};

/// The weights that the run is judged by, with the tokenizer of its data.
OpenTranslator open_translator(const std::string& run);

}  // namespace luna::train
