// What a byte pair tokenizer knows.
#pragma once

#include <array>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "luna/text/bpe.h"

namespace luna::text {

using BytePair = std::pair<int32_t, int32_t>;

/// Both ids of a pair in one number.
inline uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 |
         static_cast<uint32_t>(right);
}

/// Pairs to the rank of their merge and the id that it makes.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  ///< -1: the pair is not joined
    int32_t id = 0;
  };

  explicit MergeTable(size_t count);
  /// False if the pair is there already.
  bool insert(uint64_t key, Merge merge);
  Merge find(uint64_t key) const;

 private:
  struct Slot {
    uint64_t key = 0;
    Merge merge{};
  };
  size_t first_slot(uint64_t key) const {
    return (key * 0x9E3779B97F4A7C15) >> shift_;
  }

  int shift_;
  std::vector<Slot> slots_;
};

struct Bpe::Parts {
  /// `where` begins the messages: tokens are ids' names by id, `pairs` the
  /// merges by rank, named by ids.
  Parts(const std::string& where, std::vector<std::string> tokens,
        std::vector<BytePair> pairs);

  std::vector<std::string> tokens;
  std::vector<BytePair> pairs;
  std::unordered_map<std::string, int32_t> ids{};
  std::array<int32_t, 256> byte_ids{};
  std::vector<std::string> bytes{};  ///< by id; "" for special tokens
  MergeTable merges;
};

}  // namespace luna::text
