#pragma once

#include <ATen/core/Tensor.h>
#include <luna/data/batch.h>
#include <luna/data/parallel_text.h>
#include <luna/text/bpe.h>

#include <span>
#include <string>
#include <vector>

// Pairs of sentences as ids, in a folder:
//   tokenizer.json     of both languages
//   SPLIT.safetensors  source, target (int32 ids of all sentences in a row)
//                      and source_offsets, target_offsets (int64: sentence i
//                      is ids offsets[i] ... offsets[i + 1] - 1)
//   translation.json   where it came from and what was left out

namespace luna::data {

/// Special tokens that the tokenizer of a translation folder must have.
struct TranslationSpecials {
  int32_t pad = 0, start = 0, end = 0;  ///< <pad>, <s>, </s>
};
TranslationSpecials translation_specials(const std::string& where,
                                         const text::Bpe& tokenizer);

/// Without special tokens.
struct TranslationPair {
  std::span<const int32_t> source{}, target{};
};

/// One split, mapped from its file or in memory.
class TranslationData {
 public:
  /// Cuts the pairs into tokens. Pairs with a side of more than `max_tokens`
  /// are left out and counted in `too_long`; 0: none are.
  static TranslationData encode(const ParallelText& text,
                                const text::Bpe& tokenizer, int64_t max_tokens,
                                int64_t& too_long);
  /// Opens and checks FOLDER/SPLIT.safetensors: ids below `vocabulary`.
  static TranslationData open(const std::string& folder,
                              const std::string& split, int64_t vocabulary);
  void save(const std::string& path) const;

  int64_t size() const { return source_offsets_.numel() - 1; }
  TranslationPair operator[](int64_t index) const;
  int64_t source_tokens() const { return source_.numel(); }
  int64_t target_tokens() const { return target_.numel(); }

 private:
  TranslationData(at::Tensor source, at::Tensor source_offsets,
                  at::Tensor target, at::Tensor target_offsets);

  at::Tensor source_, source_offsets_, target_, target_offsets_;
};

/// Sentences of about equal length together, as many as fit in `max_tokens`
/// of either side, padding and </s> counted. The batches of an epoch are a
/// pure function of (lengths, max_tokens, seed, epoch) and hold every pair
/// once.
std::vector<std::vector<int64_t>> token_batches(const TranslationData& data,
                                                int64_t max_tokens,
                                                uint64_t seed, int64_t epoch);

/// Both sides as a batch: `first` is the source with </s> behind each
/// sentence, `second` what the decoder reads, <s> and the sentence, and
/// `labels` what it is to say, the sentence and </s>: one for each real
/// position of `second`, row after row.
Batch make_translation_batch(const TranslationData& data,
                             std::span<const int64_t> indices,
                             const TranslationSpecials& specials);

}  // namespace luna::data
