#pragma once

#include "command.h"

namespace luna::cli {

/// Whether luna data translation made the folder.
bool is_translation_folder(const std::string& path);
/// What it says of itself.
int show_translation(const std::string& path, bool json);

/// luna data translation: parallel text as ids for training.
Command add_data_translation(CLI::App& parent);

}  // namespace luna::cli
