#pragma once

#include <luna/data/translation.h>
#include <luna/io/file_lock.h>
#include <luna/train/trainer.h>

#include <optional>
#include <string>

namespace luna::train {

/// The folder of a run: made or opened, and nobody else's while this lives.
struct OpenFolder {
  OpenFolder(const TrainConfig& config, const TrainOptions& options);

  RunFolder run;
  std::optional<io::FileLock> lock{};
};

/// Puts the tokenizer, and what else is to be known of the data in `source`,
/// beside the weights; a run that goes on must have the same vocabulary.
void keep_tokenizer(const RunFolder& run, const data::TranslationDataset& data,
                    const std::string& source, bool resume);

}  // namespace luna::train
