#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

// Scores of translations, equal to those of sacreBLEU.

namespace luna::text {

/// What BLEU counts as words: of WMT's mteval-v13a, of mteval-v14
/// international, single characters, or what white space separates.
enum class BleuTokens { k13a, kInternational, kCharacters, kNone };

struct BleuOptions {
  BleuTokens tokens = BleuTokens::k13a;
  bool smooth = true;  ///< a precision of 0 counts as half of the one before
                       ///< it would (exp)
  bool effective_order = false;  ///< only n-grams that are there count: for
                                 ///< single sentences
};

inline constexpr int kBleuOrder = 4;

struct BleuScore {
  double score = 0;                             ///< 0 to 100
  std::array<double, kBleuOrder> precisions{};  ///< of 1 to 4 words, percent
  std::array<int64_t, kBleuOrder> matches{}, totals{};
  double brevity_penalty = 1;
  int64_t length = 0, reference_length = 0;  ///< in words
};

/// Lines of a translation, or of one reference of it.
using Lines = std::vector<std::string>;

/// References are as long as the translation and at least one. Lines that are
/// not UTF-8 are refused.
BleuScore bleu(const Lines& lines, std::span<const Lines> references,
               const BleuOptions& options = {});

/// What sacreBLEU calls a signature, with luna's version.
std::string bleu_signature(size_t references, const BleuOptions& options = {});

struct ChrfOptions {
  int characters = 6;  ///< n-grams of 1 to so many characters
  int words = 0;       ///< and of 1 to so many words; 2 is chrF++
  int beta = 2;        ///< how much more recall counts than precision
};

double chrf(const Lines& lines, std::span<const Lines> references,
            const ChrfOptions& options = {});
std::string chrf_signature(size_t references, const ChrfOptions& options = {});
/// chrF2, chrF2++
std::string chrf_name(const ChrfOptions& options);

}  // namespace luna::text
