#pragma once

#include <luna/data/splits.h>

#include <span>
#include <utility>
#include <vector>

namespace luna::data {

/// Copies of some samples, in the order given.
std::shared_ptr<Dataset> subset(const Dataset& data,
                                std::span<const int64_t> indices);

/// Which of 0 ... size - 1 are kept and which held out for validation:
/// `share`, rounded down, but at least one; by a fixed seed, so that everybody
/// has the same split. Both in rising order.
std::pair<std::vector<int64_t>, std::vector<int64_t>> hold_out(int64_t size,
                                                               double share);

/// At most `samples` of them, chosen by the seed, in their old order; all if
/// `samples` is 0.
std::shared_ptr<Dataset> at_most(std::shared_ptr<Dataset> data, int64_t samples,
                                 uint64_t seed);

}  // namespace luna::data
