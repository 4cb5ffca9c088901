#pragma once

#include <string>

namespace luna::report {

/// Copies into the folder `out` what a report says of a run, small enough to
/// be committed: config.json, summary.json, translation.json and scores/ as
/// they are; of metrics.jsonl every line but those of training, of which about
/// a hundred stay; start.safetensors and best/model.safetensors with the
/// feature maps alone. Samples are not copied: they are of the data, which may
/// not be anybody's to give away. A folder that is there is replaced. Throws
/// if `folder` is no run, or is `out`.
void keep_run(const std::string& folder, const std::string& out);

}  // namespace luna::report
