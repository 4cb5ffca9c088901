#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::text {

/// What is done to text before it is cut into words.
struct BertNormalizerOptions {
  bool clean_text = true;            ///< drop control characters, unify spaces
  bool handle_chinese_chars = true;  ///< a space around every CJK ideograph
  std::optional<bool> strip_accents{};  ///< if not said: as lowercase
  bool lowercase = true;
};

enum class Truncation { kLongestFirst, kOnlyFirst, kOnlySecond };

struct EncodeOptions {
  /// At most so many ids, special ones counted; 0: however many there are.
  int64_t max_length = 0;
  Truncation truncation = Truncation::kLongestFirst;
  bool special_tokens = true;  ///< [CLS] and [SEP] around the sequences
};

/// Characters (not bytes) begin ... end - 1 of the text given.
struct Offsets {
  int64_t begin = 0, end = 0;
  bool operator==(const Offsets&) const = default;
};

/// Of text, or of a pair; as long as each other.
struct Encoding {
  std::vector<int64_t> ids{};
  std::vector<int64_t> type_ids{};  ///< 0, or 1 for what belongs to the second
  std::vector<Offsets> offsets{};   ///< in the sequence it is from; 0, 0 for
                                    ///< tokens that no text stands for
};

/// BERT's tokenizer: normalise, cut at white space and punctuation, then take
/// from each word the longest piece that the vocabulary has, again and again.
/// Gives what PyPI's tokenizers gives. Copies share the vocabulary; all
/// functions may be called by many threads at once.
class WordPiece {
 public:
  /// A tokenizer.json or a vocab.txt, or a folder with one of them (the first
  /// counts; a vocab.txt's options are in the tokenizer_config.json beside it).
  /// What a tokenizer.json says of truncation and padding is not read: that is
  /// for the caller to say. Throws ValueError that names file and field.
  static WordPiece open(const std::string& path);

  Encoding encode(std::string_view text,
                  const EncodeOptions& options = {}) const;
  Encoding encode(std::string_view first, std::string_view second,
                  const EncodeOptions& options = {}) const;

  /// Ids are 0 ... size() - 1.
  int64_t size() const;
  const std::string& token(int64_t id) const;
  /// None if the vocabulary does not have it.
  std::optional<int64_t> find(std::string_view token) const;
  /// Of [PAD]; 0 if there is none.
  int64_t pad_id() const;
  const BertNormalizerOptions& normalizer() const;

 private:
  struct Parts;
  explicit WordPiece(std::shared_ptr<const Parts> parts);
  std::shared_ptr<const Parts> parts_;
};

}  // namespace luna::text
