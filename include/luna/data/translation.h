#pragma once

#include <ATen/core/Tensor.h>
#include <luna/data/batch.h>
#include <luna/data/parallel_text.h>
#include <luna/text/bpe.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

// Pairs of sentences as ids, in a folder:
//   tokenizer.json     of both languages
//   SPLIT.safetensors  source, target (int32 ids of all sentences in a row)
//                      and source_offsets, target_offsets (int64: sentence i
//                      is ids offsets[i] ... offsets[i + 1] - 1)
//   translation.json   where it came from, how it was made uniform and what
//                      was left out

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
  /// Copies of some pairs, in the order given.
  TranslationData some(std::span<const int64_t> indices) const;

  int64_t size() const { return source_offsets_.numel() - 1; }
  TranslationPair operator[](int64_t index) const;
  int64_t source_tokens() const { return source_.numel(); }
  int64_t target_tokens() const { return target_.numel(); }

 private:
  TranslationData(at::Tensor source, at::Tensor source_offsets,
                  at::Tensor target, at::Tensor target_offsets);

  at::Tensor source_, source_offsets_, target_, target_offsets_;
};

/// A split as a data set. Samples have `tokens`, those of the source; `text`
/// is empty, as the tokenizer gives it.
class TranslationDataset final : public Dataset {
 public:
  /// `where` starts the message if the tokenizer lacks a special token.
  TranslationDataset(const std::string& where, TranslationData data,
                     text::Bpe tokenizer);

  const TaskInfo& info() const override { return info_; }
  int64_t size() const override { return pairs_.size(); }
  int64_t longest() const override { return longest_; }  ///< of both sides
  Sample operator[](int64_t index) const override;

  const TranslationData& pairs() const { return pairs_; }
  const text::Bpe& tokenizer() const { return tokenizer_; }
  const TranslationSpecials& specials() const { return specials_; }

 private:
  TranslationData pairs_;
  text::Bpe tokenizer_;
  TranslationSpecials specials_;
  TaskInfo info_{};
  int64_t longest_ = 0;
};

/// The data set, if it is one of translation.
inline const TranslationDataset* as_translation(const Dataset& data) {
  return dynamic_cast<const TranslationDataset*>(&data);
}

/// The task's name in configs and data sets.
inline constexpr const char* kTranslationTask = "translation";
TaskInfo translation_info(int64_t vocabulary);

/// The length to which a sentence of `tokens` is padded where shapes are to be
/// few: the next multiple of 8, beyond 64 of an eighth to a quarter of it.
int64_t bucket_length(int64_t tokens);

/// Sentences of one bucket_length together, as many as fit in `max_tokens` of
/// either side, padding to it and </s> counted. The batches of an epoch are a
/// pure function of (lengths, max_tokens, seed, epoch), hold every pair once
/// and are as many in every epoch.
std::vector<std::vector<int64_t>> token_batches(const TranslationData& data,
                                                int64_t max_tokens,
                                                uint64_t seed, int64_t epoch);

/// Batches to be packed: sentences of all lengths together, at most
/// `max_tokens` of either side with their <s> or </s>. Sorted by length, the
/// pairs are dealt out like cards, so that batches hold about the same number
/// of pairs and of tokens. As token_batches else; batches of the same lengths
/// make up every epoch.
std::vector<std::vector<int64_t>> packed_batches(const TranslationData& data,
                                                 int64_t max_tokens,
                                                 uint64_t seed, int64_t epoch);

/// The order in which a run sees token_batches or packed_batches, epoch after
/// epoch; a pure function, as DataOrder is.
class TokenOrder {
 public:
  /// `data` must outlive it.
  TokenOrder(const TranslationData& data, int64_t max_tokens, uint64_t seed,
             bool packed = false);

  /// Indices of batch `number` (from 0).
  const std::vector<int64_t>& batch(int64_t number);
  int64_t batches_in_epoch() const { return std::ssize(batches_); }
  /// All of the epoch that was last asked for; before, of the first one.
  const std::vector<std::vector<int64_t>>& batches() const { return batches_; }

 private:
  std::vector<std::vector<int64_t>> make(int64_t epoch) const;

  const TranslationData* data_;
  int64_t max_tokens_;
  uint64_t seed_;
  bool packed_;
  int64_t epoch_ = 0;
  std::vector<std::vector<int64_t>> batches_;  ///< of that epoch
};

/// Rows and columns to which both sides of a batch are padded.
struct BatchShape {
  int64_t rows = 0, length = 0;
};
/// The one that all batches of a bucket have.
BatchShape token_batch_shape(const TranslationData& data,
                             std::span<const int64_t> indices,
                             int64_t max_tokens);

/// Both sides as a batch: `first` is the source with </s> behind each
/// sentence, `second` what the decoder reads, <s> and the sentence, and
/// `labels` what it is to say, the sentence and </s>: one for each real
/// position of `second`, row after row.
///
/// With a shape: padded to it, also in rows, which then hold no more than a
/// special token each, and with padded labels.
Batch make_translation_batch(const TranslationData& data,
                             std::span<const int64_t> indices,
                             const TranslationSpecials& specials,
                             const std::optional<BatchShape>& shape = {});

/// What both sides of a packed batch have, whatever its pairs.
struct PackedShape {
  int64_t pairs = 0;               ///< empty ones behind the real ones counted
  int64_t source = 0, target = 0;  ///< tokens, with a filler of 1 or more
  int64_t longest = 0;             ///< of sentences and fillers
};
/// The least one with room for each of some batches: for all batches of
/// packed_batches that of one epoch, since all have the same lengths.
PackedShape packed_shape(const TranslationData& data,
                         std::span<const std::vector<int64_t>> batches);

/// make_translation_batch with both sides packed, sentence i of one beside
/// sentence i of the other. A label for every token of `second`: kNoLabel of
/// the filler.
Batch make_packed_translation_batch(const TranslationData& data,
                                    std::span<const int64_t> indices,
                                    const TranslationSpecials& specials,
                                    const PackedShape& shape);

/// Sentences alone, with </s> behind each.
Sequences make_sources(std::span<const std::vector<int32_t>> sentences,
                       const TranslationSpecials& specials);

}  // namespace luna::data
