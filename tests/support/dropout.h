#pragma once

// Dropout of pack_attention and unpack_attention: with values that are the
// identity, the output is the matrix of dropped probabilities itself.

#include "support/problems.h"

namespace luna::testing {

/// Sets the values of a problem with as many keys as value widths to one-hot
/// rows.
void make_values_one_hot(Problem& problem);

/// The same problem's arguments with another seed.
Arguments with_seed(const Arguments& arguments, int64_t first, int64_t second);

/// Each probability is 0 or divided by 1 - p; about p of them are 0, whatever
/// the sample, head, query or key. `exact` knows no dropout.
void expect_dropout_drops_or_scales(const Problem& dropped,
                                    const Problem& exact, double p);

/// Equal seeds give equal bits, other seeds other masks, and no generator of
/// torch takes part.
void expect_pure_function_of_the_seed(const Case& c, const Problem& dropped);

}  // namespace luna::testing
