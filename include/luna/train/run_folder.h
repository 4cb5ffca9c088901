#pragma once

#include <luna/train/train_config.h>

#include <cstdint>
#include <string>
#include <vector>

namespace luna::train {

/// The validation that was best so far.
struct Best {
  int64_t step = -1;  ///< -1: none yet
  double accuracy = 0.0;
  double loss = 0.0;
  double score = 0.0;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.step, {.name = "step", .help = "steps done then"});
    visit(self.accuracy, {.name = "accuracy", .help = "0 to 1"});
    visit(self.loss, {.name = "loss", .help = "mean cross-entropy"});
    visit(self.score, {.name = "score", .help = "the task's metric"});
  }

  bool worse_than(const Best& other, bool by_loss) const {
    return step < 0 || (!by_loss && score < other.score) ||
           ((by_loss || score == other.score) && loss > other.loss);
  }
};

/// Where a run is, beside its tensors: state.json of a checkpoint.
struct RunState {
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t skipped = 0;
  int64_t validations_without_better = 0;
  int64_t metrics_bytes = 0;
  double seconds = 0.0;
  double training_seconds = 0.0;
  double waiting_seconds = 0.0;
  int64_t threads = 0;
  std::string device = "cpu";
  int64_t train_samples = 0;
  int64_t side_by_side = 0;
  Best best{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.step,
          {.name = "step", .help = "optimizer steps done", .minimum = 0});
    visit(self.tokens, {.name = "tokens", .help = "seen", .minimum = 0});
    visit(self.skipped,
          {.name = "skipped", .help = "steps without an update", .minimum = 0});
    visit(self.validations_without_better,
          {.name = "validations_without_better",
           .help = "since the best",
           .minimum = 0});
    visit(self.metrics_bytes, {.name = "metrics_bytes",
                               .help = "size of metrics.jsonl then",
                               .minimum = 0});
    visit(self.seconds, {.name = "seconds", .help = "run in all"});
    visit(self.training_seconds,
          {.name = "training_seconds", .help = "of them, in steps"});
    visit(self.waiting_seconds,
          {.name = "waiting_seconds", .help = "of them, waiting for batches"});
    visit(self.threads, {.name = "threads", .help = "used"});
    visit(self.device, {.name = "device", .help = "used"});
    visit(self.train_samples,
          {.name = "train_samples", .help = "in the training split"});
    visit(self.side_by_side,
          {.name = "side_by_side",
           .help = "runs that its sweep let go at once, at most, this one "
                   "counted; 0: an older luna trained a part of it",
           .minimum = 0});
    visit(self.best, {.name = "best", .help = "best validation"});
  }
};

/// The names in a run's folder.
class RunFolder {
 public:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string config() const { return path_ + "/config.json"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string summary() const { return path_ + "/summary.json"; }
  std::string samples() const { return path_ + "/samples.json"; }
  std::string start() const { return path_ + "/start.safetensors"; }
  std::string lock() const { return path_ + "/lock"; }
  std::string best() const { return path_ + "/best"; }
  std::string averaged() const { return path_ + "/averaged"; }
  /// Of a run of translation: what its data folder has under these names.
  std::string tokenizer() const { return path_ + "/tokenizer.json"; }
  std::string translation() const { return path_ + "/translation.json"; }
  /// Of a ViT that was trained from scratch, at the end.
  std::string hugging_face() const { return path_ + "/hugging_face"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string checkpoint(int64_t step) const;

  /// Whether a run was started here; best/ has a config too, beside weights.
  bool holds_run() const;
  /// Steps of the checkpoints that are there, latest first.
  std::vector<int64_t> steps() const;

 private:
  std::string path_;
};

/// Refuses a folder that holds no run, with the one that may be meant.
void check_run_folder(const std::string& path);

/// What config.json holds.
std::string config_text(const TrainConfig& config);

}  // namespace luna::train
