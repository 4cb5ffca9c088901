#pragma once

#include <string>

namespace luna::report {

/// Copies into the folder `out` what a report says of a run, small enough to
/// be committed: config.json, of an absolute path of data its last name alone;
/// summary.json, translation.json and scores/ as they are; of metrics.jsonl
/// every line but those of training, of which about a hundred stay;
/// start.safetensors and best/model.safetensors with the feature maps alone.
/// Samples are not copied: they are of the data, which may not be anybody's to
/// give away. What was kept there before is replaced. Throws if `folder` is no
/// run, and as check_keep does.
void keep_run(const std::string& folder, const std::string& out);

/// Throws if `out` is or holds the run, or is a run that was not kept but
/// trained: its checkpoints and samples would be lost.
void check_keep(const std::string& folder, const std::string& out);

}  // namespace luna::report
