// Tokens and their ids, and the search for the longest piece of a word.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::text {

/// Strings to ids, by a hash that grows with the string: those of all prefixes
/// of a word cost no more than that of the word.
class PieceTable {
 public:
  static constexpr uint64_t kStart = 0xcbf29ce484222325;  // FNV-1a
  static uint64_t extend(uint64_t hash, char byte) {
    return (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  }
  static uint64_t hash_of(std::string_view piece);

  void reserve(size_t count);
  /// False if the piece is there already. `tokens[id]` ends with it.
  bool insert(std::string_view piece, int32_t id,
              const std::vector<std::string>& tokens);
  /// -1 if there is none.
  int32_t find(std::string_view piece, uint64_t hash,
               const std::vector<std::string>& tokens) const;
  size_t longest() const { return longest_; }

 private:
  struct Slot {
    int32_t id = -1;
    uint32_t size = 0;  ///< bytes of the piece, the last of the token
    uint64_t hash = 0;
  };
  size_t slot_of(uint64_t hash) const;

  std::vector<Slot> slots_{};  ///< a power of two
  size_t longest_ = 0;
};

class Vocabulary {
 public:
  /// tokens[id]; `where` is the file, and `unknown` must be one of them.
  Vocabulary(const std::string& where, std::vector<std::string> tokens,
             const std::string& unknown, std::string prefix,
             int64_t max_characters);

  /// Appends to `ids` those of the word's pieces, and to `ends` where each ends
  /// in characters, or the unknown token alone. `bytes` holds the word in
  /// UTF-8, and character i of it ends before byte ends_of_characters[i].
  void cut(std::string_view bytes,
           const std::vector<uint32_t>& ends_of_characters,
           std::vector<int64_t>& ids, std::vector<uint32_t>& ends) const;

  const std::vector<std::string>& tokens() const { return tokens_; }
  std::optional<int64_t> find(std::string_view token) const;

 private:
  std::vector<std::string> tokens_;
  PieceTable first_{}, further_{};  ///< pieces that start a word, or go on
  int64_t max_characters_;
  int64_t unknown_ = 0;
};

}  // namespace luna::text
