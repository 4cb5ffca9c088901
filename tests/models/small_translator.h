#pragma once

// Translators of every mechanism, so small that all can be tried.

#include <luna/models/translator.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace luna::testing {

inline constexpr int64_t kSmallVocabulary = 11;

models::ModelConfig small_translator(const std::string& attention,
                                     const std::string& norm);

/// A mechanism, where the norms are, and what else is not as usual.
struct TranslatorKind {
  std::string attention, norm, variant{};

  models::ModelConfig config() const;
};
void PrintTo(const TranslatorKind& kind, std::ostream* out);
std::vector<TranslatorKind> translator_kinds();

/// In float64, in which a mistake is told from rounding; always the same.
std::shared_ptr<models::Translator> make_translator(
    const models::ModelConfig& config);

/// Random ids, as long as said.
data::Sequences random_sequences(const std::vector<int64_t>& lengths,
                                 uint64_t seed);

}  // namespace luna::testing
