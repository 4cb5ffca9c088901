#pragma once

#include <cstdint>
#include <string>

namespace luna::testing {

/// What a ListOps expression is worth, and how it is built.
struct ListOpsReading {
  int64_t value = 0;
  int64_t symbols = 0;
  int64_t depth = 0;  ///< of the deepest node; a lone digit has 1
  int64_t least_args = 0;
  int64_t most_args = 0;
};

/// Reads the text of an expression with a stack, slowly, knowing nothing of
/// the generator. Throws std::runtime_error where it is not well formed.
ListOpsReading read_listops(const std::string& text);

}  // namespace luna::testing
