#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::text {

/// Byte-level byte pair encoding, as GPT-2 has it: text is cut into words
/// (letters, numbers, other characters, white space), and the bytes of each
/// word are joined pair by pair in the order in which the pairs were learnt.
/// Gives what PyPI's tokenizers gives for the same tokenizer.json. No text is
/// unknown and none becomes a special token. Copies share the vocabulary; all
/// functions may be called by many threads at once.
class Bpe {
 public:
  /// A tokenizer.json or a folder with one. Throws ValueError that names file
  /// and field.
  static Bpe open(const std::string& path);
  /// Writes what PyPI's tokenizers reads, too.
  void save(const std::string& path) const;

  std::vector<int32_t> encode(std::string_view text) const;
  /// decode(encode(text)) == text for all bytes, UTF-8 or not. Special tokens
  /// stand for no text.
  std::string decode(std::span<const int32_t> ids) const;

  /// Ids are 0 ... size() - 1.
  int64_t size() const;
  int64_t merges() const;
  /// In letters that stand for bytes, as in the file: "Ġthe" for " the".
  const std::string& token(int64_t id) const;
  /// None if the vocabulary does not have it.
  std::optional<int32_t> find(const std::string& token) const;

 private:
  struct Parts;
  friend class BpeLearner;
  explicit Bpe(std::shared_ptr<const Parts> parts);
  std::shared_ptr<const Parts> parts_;
};

/// Whether a tokenizer.json, or the one in a folder, is one of byte pairs.
bool holds_bpe(const std::string& path);

struct BpeOptions {
  int64_t merges = 8000;      ///< fewer if the text does not give as many
  int64_t minimum_count = 2;  ///< a pair that is rarer is not joined
  /// Have the first ids; behind them the 256 bytes, then what merges make.
  std::vector<std::string> special_tokens = {"<pad>", "<s>", "</s>"};
  /// Told how many merges are done of how many; may throw to stop.
  std::function<void(int64_t done, int64_t total)> progress{};
};

/// Learns byte pairs from text: the most frequent pair first; of equally
/// frequent ones that with the lower ids.
class BpeLearner {
 public:
  BpeLearner();
  ~BpeLearner();

  /// Counts the words of a text. What is counted does not depend on the order
  /// in which texts are added.
  void add(std::string_view text);
  int64_t distinct_words() const;

  Bpe learn(const BpeOptions& options = {}) const;

 private:
  struct Counts;
  std::unique_ptr<Counts> counts_;
};

}  // namespace luna::text
