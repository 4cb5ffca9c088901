#pragma once

#include <luna/data/listops.h>

#include "data/random.h"

namespace luna::data {

/// One expression drawn at random. Returns false as soon as it has
/// options.max_length symbols or more; `ids` is then of no use.
bool draw_listops(const ListOpsOptions& options, Random& random,
                  std::vector<uint8_t>& ids, int64_t& value);

}  // namespace luna::data
