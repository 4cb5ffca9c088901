#include "train/open_folder.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include "luna/io/atomic.h"
#include "luna/io/text_file.h"

namespace luna::train {

OpenFolder::OpenFolder(const TrainConfig& config, const TrainOptions& options)
    : run(options.folder) {
  TORCH_CHECK_VALUE(!run.path().empty(),
                    "train: folder: expected a path, got an empty one");
  if (options.resume) {
    TORCH_CHECK_VALUE(run.holds_run(), run.config(),
                      ": expected the config of a run to resume, got none");
  }
  std::error_code error;
  std::filesystem::create_directories(run.checkpoints(), error);
  TORCH_CHECK(!error, "cannot make ", run.checkpoints(), ": ", error.message());
  lock.emplace(run.lock());
  TORCH_CHECK_VALUE(options.resume || !run.holds_run(), run.path(),
                    ": expected a folder without a run, got one with a "
                    "config.json; go on with it by --resume, or name "
                    "another");
  TORCH_CHECK_VALUE(options.resume || !std::filesystem::exists(run.config()),
                    run.config(),
                    ": expected a folder without a model, got this file; name "
                    "another folder");
  io::remove_leftovers(run.path());
  io::remove_leftovers(run.checkpoints());
  const std::string text = config_text(config);
  if (options.resume && io::read_text(run.config()) == text) return;
  // What a summary says holds of the config that it was reached with.
  std::filesystem::remove(run.summary(), error);
  io::write_text(run.config(), text);
}

void keep_tokenizer(const RunFolder& run, const data::TranslationDataset& data,
                    const std::string& source, bool resume) {
  const text::Bpe& tokenizer = data.tokenizer();
  if (resume && std::filesystem::exists(run.tokenizer())) {
    const auto had = text::Bpe::open(run.tokenizer());
    bool same = had.size() == tokenizer.size();
    for (int64_t id = 0; same && id < had.size(); ++id) {
      same = had.token(id) == tokenizer.token(id);
    }
    TORCH_CHECK_VALUE(same, run.tokenizer(),
                      ": expected the vocabulary of the data, ",
                      tokenizer.size(), " tokens of ", source,
                      ", got another of ", had.size());
    return;
  }
  tokenizer.save(run.tokenizer());
  const std::string facts = source + "/translation.json";
  if (!source.empty() && std::filesystem::exists(facts)) {
    io::write_text(run.translation(), io::read_text(facts));
  }
}

}  // namespace luna::train
