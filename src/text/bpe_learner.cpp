#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <queue>
#include <set>

#include "io/strict_json.h"
#include "luna/text/bpe.h"
#include "text/bpe_parts.h"
#include "text/byte_words.h"

namespace luna::text {
namespace {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
using WordCounts =
    std::unordered_map<std::string, int64_t, StringHash, std::equal_to<>>;

/// Words as rows of symbols, and all pairs of neighbours in them.
class Merger {
 public:
  Merger(const WordCounts& words, const std::array<int32_t, 256>& byte_ids) {
    begins_.reserve(words.size() + 1);
    for (const auto& [word, count] : words) {
      begins_.push_back(symbols_.size());
      for (const char byte : word) {
        symbols_.push_back(byte_ids[static_cast<uint8_t>(byte)]);
      }
      lengths_.push_back(static_cast<uint32_t>(word.size()));
      counts_.push_back(count);
    }
    for (uint32_t w = 0; w < lengths_.size(); ++w) {
      const int32_t* s = &symbols_[begins_[w]];
      for (uint32_t i = 0; i + 1 < lengths_[w]; ++i) {
        change(s[i], s[i + 1], counts_[w], w);
      }
    }
    for (const auto& [key, pair] : pairs_) queue_.push({pair.count, key});
  }

  struct Candidate {
    int64_t count = 0;
    uint64_t key = 0;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  /// The most frequent pair; a count of 0 if none is left.
  Candidate take_best() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_.find(top.key)->second.count;
      if (count == top.count) return top;
      // It became rarer since; a growing one was put in again.
      if (count > 0 && count < top.count) queue_.push({count, top.key});
    }
    return {};
  }

  void join(uint64_t key, int32_t id) {
    const auto left = static_cast<int32_t>(key >> 32);
    const auto right = static_cast<int32_t>(key);
    Pair& pair = pairs_[key];
    const std::vector<uint32_t> words = std::move(pair.words);
    pair.words.clear();
    grown_.clear();
    for (const uint32_t w : words) join_in_word(w, left, right, id);
    pairs_[key].count = 0;
    std::ranges::sort(grown_);
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const uint64_t k : grown_) {
      const int64_t count = pairs_.find(k)->second.count;
      if (count > 0) queue_.push({count, k});
    }
  }

 private:
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words{};  ///< that have or had it
  };

  void change(int32_t left, int32_t right, int64_t by, uint32_t word) {
    const uint64_t key = pair_key(left, right);
    Pair& pair = pairs_[key];
    pair.count += by;
    if (by < 0) return;
    if (pair.words.empty() || pair.words.back() != word) {
      pair.words.push_back(word);
    }
    grown_.push_back(key);
  }

  void join_in_word(uint32_t w, int32_t left, int32_t right, int32_t id) {
    int32_t* s = &symbols_[begins_[w]];
    const uint32_t length = lengths_[w];
    const int64_t count = counts_[w];
    uint32_t out = 0;
    for (uint32_t in = 0; in < length;) {
      if (in + 1 == length || s[in] != left || s[in + 1] != right) {
        s[out++] = s[in++];
        continue;
      }
      if (out > 0) {
        change(s[out - 1], left, -count, w);
        change(s[out - 1], id, count, w);
      }
      if (in + 2 < length) {
        change(right, s[in + 2], -count, w);
        change(id, s[in + 2], count, w);
      }
      s[out++] = id;
      in += 2;
    }
    lengths_[w] = out;
  }

  std::vector<int32_t> symbols_{};
  std::vector<size_t> begins_{};
  std::vector<uint32_t> lengths_{};
  std::vector<int64_t> counts_{};
  ska::flat_hash_map<uint64_t, Pair> pairs_{};
  std::priority_queue<Candidate> queue_{};
  std::vector<uint64_t> grown_{};
};

std::vector<std::string> first_tokens(const BpeOptions& options) {
  std::vector<std::string> tokens = options.special_tokens;
  for (const std::string& token : tokens) {
    size_t position = 0;
    if (!token.empty()) next_byte_word(token, position);
    // So that no merge makes it: merges stay within a word.
    TORCH_CHECK_VALUE(position < token.size(),
                      "BpeLearner: special_tokens: expected texts of several "
                      "words, such as <pad>, got ",
                      io::in_quotes(token));
  }
  for (const uint8_t byte : bytes_by_letter()) {
    tokens.push_back(byte_letters()[byte]);
  }
  const std::set<std::string> distinct(tokens.begin(), tokens.end());
  TORCH_CHECK_VALUE(distinct.size() == tokens.size(),
                    "BpeLearner: special_tokens: expected each once, got one "
                    "twice");
  return tokens;
}

}  // namespace

struct BpeLearner::Counts {
  WordCounts words{};
};

BpeLearner::BpeLearner() : counts_(std::make_unique<Counts>()) {}
BpeLearner::~BpeLearner() = default;

void BpeLearner::add(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    const std::string_view word = next_byte_word(text, position);
    const auto found = counts_->words.find(word);
    if (found != counts_->words.end()) {
      ++found->second;
    } else {
      counts_->words.emplace(word, 1);
    }
  }
}

int64_t BpeLearner::distinct_words() const {
  return std::ssize(counts_->words);
}

Bpe BpeLearner::learn(const BpeOptions& options) const {
  TORCH_CHECK_VALUE(options.merges >= 0 && options.merges <= 1 << 24,
                    "BpeLearner: merges: expected 0 to 16777216, got ",
                    options.merges);
  std::vector<std::string> tokens = first_tokens(options);
  std::unordered_map<std::string, int32_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ids[tokens[i]] = static_cast<int32_t>(i);
  }
  std::array<int32_t, 256> byte_ids{};
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids[byte] = ids.at(byte_letters()[byte]);
  }
  Merger merger(counts_->words, byte_ids);
  std::vector<BytePair> pairs;
  ska::flat_hash_map<uint64_t, int32_t> joined;
  while (std::ssize(pairs) < options.merges) {
    const auto best = merger.take_best();
    if (best.count < std::max<int64_t>(options.minimum_count, 1)) break;
    const auto known = joined.find(best.key);
    if (known != joined.end()) {
      // Arose again: two merges can make the same token.
      merger.join(best.key, known->second);
      continue;
    }
    const BytePair pair(static_cast<int32_t>(best.key >> 32),
                        static_cast<int32_t>(best.key));
    const std::string token = tokens[pair.first] + tokens[pair.second];
    const auto [place, fresh] =
        ids.emplace(token, static_cast<int32_t>(tokens.size()));
    const int32_t id = place->second;
    if (fresh) tokens.push_back(token);
    merger.join(best.key, id);
    joined[best.key] = id;
    pairs.push_back(pair);
    if (options.progress && std::ssize(pairs) % 64 == 0) {
      options.progress(std::ssize(pairs), options.merges);
    }
  }
  return Bpe(std::make_shared<const Bpe::Parts>("BpeLearner", std::move(tokens),
                                                std::move(pairs)));
}

}  // namespace luna::text
