#include "text/vocabulary.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

#include "io/strict_json.h"

namespace luna::text {

uint64_t PieceTable::hash_of(std::string_view piece) {
  uint64_t hash = kStart;
  for (const char byte : piece) hash = extend(hash, byte);
  return hash;
}

// FNV-1a's bits do not mix well in short strings: a product's upper bits do.
size_t PieceTable::slot_of(uint64_t hash) const {
  return hash * 0x9e3779b97f4a7c15 >> (64 - std::countr_zero(slots_.size()));
}

void PieceTable::reserve(size_t count) {
  slots_.assign(std::bit_ceil(2 * count + 2), {});
}

bool PieceTable::insert(std::string_view piece, int32_t id,
                        const std::vector<std::string>& tokens) {
  const uint64_t hash = hash_of(piece);
  if (find(piece, hash, tokens) >= 0) return false;
  const size_t mask = slots_.size() - 1;
  size_t i = slot_of(hash);
  while (slots_[i].id >= 0) i = (i + 1) & mask;
  slots_[i] = {id, static_cast<uint32_t>(piece.size()), hash};
  longest_ = std::max(longest_, piece.size());
  return true;
}

int32_t PieceTable::find(std::string_view piece, uint64_t hash,
                         const std::vector<std::string>& tokens) const {
  const size_t mask = slots_.size() - 1;
  for (size_t i = slot_of(hash); slots_[i].id >= 0; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.hash == hash && slot.size == piece.size() &&
        std::string_view(tokens[slot.id]).ends_with(piece)) {
      return slot.id;
    }
  }
  return -1;
}

Vocabulary::Vocabulary(const std::string& where,
                       std::vector<std::string> tokens,
                       const std::string& unknown, std::string prefix,
                       int64_t max_characters)
    : tokens_(std::move(tokens)), max_characters_(max_characters) {
  first_.reserve(tokens_.size());
  further_.reserve(tokens_.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const std::string_view token = tokens_[id];
    TORCH_CHECK_VALUE(first_.insert(token, static_cast<int32_t>(id), tokens_),
                      where, ": token ", io::in_quotes(token),
                      ": expected it once, got it again as number ", id);
    if (token.size() > prefix.size() && token.starts_with(prefix)) {
      further_.insert(token.substr(prefix.size()), static_cast<int32_t>(id),
                      tokens_);
    }
  }
  const auto found = find(unknown);
  TORCH_CHECK_VALUE(found, where, ": expected the unknown token ",
                    io::in_quotes(unknown),
                    " in the vocabulary, got none of that name");
  unknown_ = *found;
}

std::optional<int64_t> Vocabulary::find(std::string_view token) const {
  const auto id = first_.find(token, PieceTable::hash_of(token), tokens_);
  if (id < 0) return std::nullopt;
  return id;
}

void Vocabulary::cut(std::string_view bytes,
                     const std::vector<uint32_t>& ends_of_characters,
                     std::vector<int64_t>& ids,
                     std::vector<uint32_t>& ends) const {
  const size_t characters = ends_of_characters.size();
  const size_t had_ids = ids.size(), had_ends = ends.size();
  const auto give_up = [&] {
    ids.resize(had_ids);
    ends.resize(had_ends);
    ids.push_back(unknown_);
    ends.push_back(static_cast<uint32_t>(characters));
  };
  if (std::cmp_greater(characters, max_characters_)) return give_up();

  std::vector<uint64_t> hashes(characters);
  for (size_t begin = 0; begin < characters;) {
    const PieceTable& table = begin == 0 ? first_ : further_;
    const size_t from = begin == 0 ? 0 : ends_of_characters[begin - 1];
    uint64_t hash = PieceTable::kStart;
    size_t end = begin;
    for (size_t at = from; end < characters; ++end) {
      if (ends_of_characters[end] - from > table.longest()) break;
      for (; at < ends_of_characters[end]; ++at) {
        hash = PieceTable::extend(hash, bytes[at]);
      }
      hashes[end] = hash;
    }
    int32_t id = -1;
    for (; end > begin; --end) {
      id = table.find(bytes.substr(from, ends_of_characters[end - 1] - from),
                      hashes[end - 1], tokens_);
      if (id >= 0) break;
    }
    if (id < 0) return give_up();
    ids.push_back(id);
    ends.push_back(static_cast<uint32_t>(end));
    begin = end;
  }
}

}  // namespace luna::text
