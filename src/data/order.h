#pragma once

#include <cstdint>
#include <vector>

namespace luna::data {

/// 0 ... size - 1 in an order that depends on (size, seed, stream) alone.
std::vector<int64_t> permutation(int64_t size, uint64_t seed, uint64_t stream);

}  // namespace luna::data
