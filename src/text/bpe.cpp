#include "luna/text/bpe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

#include "io/strict_json.h"
#include "text/bpe_parts.h"
#include "text/byte_words.h"

namespace luna::text {
namespace {

/// Joins the symbols of one word after another; keeps its memory.
class WordJoiner {
 public:
  explicit WordJoiner(const MergeTable& merges) : merges_(merges) {}

  void join(std::string_view word, const std::array<int32_t, 256>& byte_ids,
            std::vector<int32_t>& result) {
    symbols_.clear();
    for (const char byte : word) {
      const auto at = static_cast<int32_t>(symbols_.size());
      symbols_.push_back(
          {byte_ids[static_cast<uint8_t>(byte)], at - 1, at + 1});
    }
    symbols_.back().next = -1;
    for (int32_t i = 0; i + 1 < std::ssize(symbols_); ++i) look_at(i);
    while (!waiting_.empty()) {
      std::ranges::pop_heap(waiting_, std::greater{});
      const uint64_t next = waiting_.back();
      waiting_.pop_back();
      join_at(static_cast<int32_t>(next), static_cast<int32_t>(next >> 32));
    }
    for (int32_t i = 0; i >= 0; i = symbols_[i].next) {
      result.push_back(symbols_[i].id);
    }
  }

 private:
  struct Symbol {
    int32_t id, previous, next;
  };

  MergeTable::Merge merge_at(int32_t i) const {
    return merges_.find(
        pair_key(symbols_[i].id, symbols_[symbols_[i].next].id));
  }

  /// Lets the pair that begins at i wait for its turn: by rank, then place.
  void look_at(int32_t i) {
    const auto merge = merge_at(i);
    if (merge.rank < 0) return;
    waiting_.push_back(uint64_t{static_cast<uint32_t>(merge.rank)} << 32 |
                       static_cast<uint32_t>(i));
    std::ranges::push_heap(waiting_, std::greater{});
  }

  void join_at(int32_t i, int32_t rank) {
    Symbol& symbol = symbols_[i];
    // What waited may have been joined otherwise since.
    if (symbol.id < 0 || symbol.next < 0) return;
    const auto merge = merge_at(i);
    if (merge.rank != rank) return;
    Symbol& right = symbols_[symbol.next];
    symbol.id = merge.id;
    symbol.next = right.next;
    right.id = -1;
    if (symbol.next >= 0) {
      symbols_[symbol.next].previous = i;
      look_at(i);
    }
    if (symbol.previous >= 0) look_at(symbol.previous);
  }

  const MergeTable& merges_;
  std::vector<Symbol> symbols_{};
  std::vector<uint64_t> waiting_{};  ///< a heap
};

}  // namespace

MergeTable::MergeTable(size_t count)
    : shift_(64 - std::max(4, static_cast<int>(std::bit_width(2 * count)))),
      slots_(size_t{1} << (64 - shift_)) {}

bool MergeTable::insert(uint64_t key, Merge merge) {
  size_t slot = first_slot(key);
  while (slots_[slot].merge.rank >= 0) {
    if (slots_[slot].key == key) return false;
    slot = (slot + 1) % slots_.size();
  }
  slots_[slot] = {key, merge};
  return true;
}

MergeTable::Merge MergeTable::find(uint64_t key) const {
  size_t slot = first_slot(key);
  while (slots_[slot].merge.rank >= 0) {
    if (slots_[slot].key == key) return slots_[slot].merge;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return {};
}

Bpe::Parts::Parts(const std::string& where, std::vector<std::string> tokens_,
                  std::vector<BytePair> pairs_)
    : tokens(std::move(tokens_)),
      pairs(std::move(pairs_)),
      bytes(tokens.size()),
      merges(pairs.size()) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    const bool fresh = ids.emplace(tokens[id], static_cast<int32_t>(id)).second;
    TORCH_CHECK_VALUE(fresh, where, ": expected each token once, got ",
                      io::in_quotes(tokens[id]), " twice");
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(byte_letters()[byte]);
    TORCH_CHECK_VALUE(found != ids.end(), where,
                      ": expected a token for every byte, got none for byte ",
                      byte, ", ", io::in_quotes(byte_letters()[byte]));
    byte_ids[byte] = found->second;
    bytes[found->second] = static_cast<char>(byte);
  }
  for (size_t rank = 0; rank < pairs.size(); ++rank) {
    const auto left = pairs[rank].first, right = pairs[rank].second;
    const std::string joined = tokens[left] + tokens[right];
    const auto place = [&] {
      return where + ": merge " + std::to_string(rank) + ", " +
             io::in_quotes(tokens[left]) + " and " +
             io::in_quotes(tokens[right]);
    };
    const auto found = ids.find(joined);
    TORCH_CHECK_VALUE(found != ids.end(), place(), ": expected a token ",
                      io::in_quotes(joined), ", got none");
    TORCH_CHECK_VALUE(!bytes[left].empty() && !bytes[right].empty(), place(),
                      ": expected two tokens that bytes or earlier merges "
                      "make, got others");
    bytes[found->second] = bytes[left] + bytes[right];
    const bool fresh = merges.insert(
        pair_key(left, right), {static_cast<int32_t>(rank), found->second});
    TORCH_CHECK_VALUE(fresh, place(), ": expected it once, got it twice");
  }
}

Bpe::Bpe(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

std::vector<int32_t> Bpe::encode(std::string_view text) const {
  std::vector<int32_t> result;
  result.reserve(text.size() / 3);
  WordJoiner joiner(parts_->merges);
  for (size_t position = 0; position < text.size();) {
    joiner.join(next_byte_word(text, position), parts_->byte_ids, result);
  }
  return result;
}

std::string Bpe::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    token(id);  // checks it
    text += parts_->bytes[id];
  }
  return text;
}

int64_t Bpe::size() const { return std::ssize(parts_->tokens); }
int64_t Bpe::merges() const { return std::ssize(parts_->pairs); }

const std::string& Bpe::token(int64_t id) const {
  TORCH_CHECK_VALUE(id >= 0 && id < size(), "Bpe: expected an id from 0 to ",
                    size() - 1, ", got ", id);
  return parts_->tokens[id];
}

std::optional<int32_t> Bpe::find(const std::string& token) const {
  const auto found = parts_->ids.find(token);
  if (found == parts_->ids.end()) return std::nullopt;
  return found->second;
}

}  // namespace luna::text
