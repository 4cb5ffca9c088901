#pragma once

#include "command.h"

namespace luna::cli {

/// luna bench decode.
Command add_bench_decode(CLI::App& bench);

}  // namespace luna::cli
