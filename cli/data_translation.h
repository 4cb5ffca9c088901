#pragma once

#include "command.h"

namespace luna::cli {

/// luna data translation: parallel text as ids for training.
Command add_data_translation(CLI::App& parent);

}  // namespace luna::cli
