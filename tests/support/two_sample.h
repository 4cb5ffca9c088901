#pragma once

#include <cstdint>
#include <vector>

namespace luna::testing {

using Rows = std::vector<std::vector<double>>;

/// Two-sample test by energy distance (Szekely and Rizzo): the p-value of "`a`
/// and `b` are samples of one distribution", by permutation. Columns are
/// scaled by the standard deviation in `a`; one that is constant there counts
/// as it is. Sensitive to any difference of distributions, not to means alone.
double energy_test(const Rows& a, const Rows& b, int64_t permutations,
                   uint64_t seed);

}  // namespace luna::testing
