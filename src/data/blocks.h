#pragma once

#include <luna/data/generate.h>

namespace luna::data {

/// Cuts 0 ... total - 1 into blocks and calls work(first, last) for each, on
/// `threads` threads (0: one a core). The calling thread waits and calls
/// `progress` with the number of items done. What work or progress throws
/// stops all threads and comes out here.
void for_each_block(int64_t total, int64_t block, int threads,
                    const std::function<void(int64_t, int64_t)>& work,
                    const GenerateProgress& progress = {});

}  // namespace luna::data
