// The folder that a command is to make: asked before any work is done.
#pragma once

#include <functional>
#include <string>

namespace luna::cli {

/// Passes a path that is free, an empty folder, or one that `is_ours` takes for
/// an earlier result of `command` ("luna convert"), which may be replaced;
/// makes the folders above it. Else throws UsageError: nothing of the user's is
/// ever replaced.
void prepare_out_folder(const std::string& out, const std::string& command,
                        const std::function<bool()>& is_ours);

}  // namespace luna::cli
