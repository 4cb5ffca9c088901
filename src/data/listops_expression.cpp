#include "data/listops_expression.h"

#include <array>

namespace luna::data {

namespace {

/// How often each digit occurs among the arguments of an operator: all four
/// operators are functions of that.
using DigitCounts = std::array<int64_t, 10>;

int64_t smallest(const DigitCounts& counts) {
  int64_t digit = 0;
  while (counts[digit] == 0) ++digit;
  return digit;
}

int64_t greatest(const DigitCounts& counts) {
  int64_t digit = 9;
  while (counts[digit] == 0) --digit;
  return digit;
}

/// The argument that stands at `rank` (from 0) when they are sorted.
int64_t sorted_at(const DigitCounts& counts, int64_t rank) {
  int64_t digit = 0;
  while (rank >= counts[digit]) rank -= counts[digit++];
  return digit;
}

int64_t value_of(uint8_t symbol, const DigitCounts& counts) {
  if (symbol == kListOpsMin) return smallest(counts);
  if (symbol == kListOpsMax) return greatest(counts);
  int64_t args = 0, sum = 0;
  for (int64_t digit = 0; digit < 10; ++digit) {
    args += counts[digit];
    sum += digit * counts[digit];
  }
  if (symbol == kListOpsSumModulo) return sum % 10;
  // Of an even number of arguments: the mean of the middle two, truncated.
  return (sorted_at(counts, (args - 1) / 2) + sorted_at(counts, args / 2)) / 2;
}

class Drawer {
 public:
  Drawer(const ListOpsOptions& options, Random& random,
         std::vector<uint8_t>& ids)
      : options_(options), random_(random), ids_(ids) {}

  bool node(int64_t depth, int64_t& value) {
    if (depth >= options_.max_depth || random_.below(4) != 0) {
      value = random_.below(10);
      return push(static_cast<uint8_t>(value));
    }
    const auto symbol = static_cast<uint8_t>(kListOpsMin + random_.below(4));
    const int64_t args = random_.between(2, options_.max_args);
    if (!push(symbol)) return false;
    DigitCounts counts{};
    for (int64_t i = 0; i < args; ++i) {
      int64_t argument = 0;
      if (!node(depth + 1, argument)) return false;
      ++counts[argument];
    }
    value = value_of(symbol, counts);
    return push(kListOpsEnd);
  }

 private:
  bool push(uint8_t symbol) {
    ids_.push_back(symbol);
    return static_cast<int64_t>(ids_.size()) < options_.max_length;
  }

  const ListOpsOptions& options_;
  Random& random_;
  std::vector<uint8_t>& ids_;
};

}  // namespace

bool draw_listops(const ListOpsOptions& options, Random& random,
                  std::vector<uint8_t>& ids, int64_t& value) {
  ids.clear();
  return Drawer(options, random, ids).node(1, value);
}

}  // namespace luna::data
