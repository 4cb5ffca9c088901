#pragma once

#include <c10/core/Device.h>
#include <luna/config/options.h>
#include <luna/train/evaluate.h>
#include <luna/train/train_config.h>

#include <functional>
#include <string>
#include <vector>

namespace luna::distill {

struct ConversionOptions {
  std::string model{};  ///< a Hugging Face folder with a classifier, or a run
  std::string task{}, data{};  ///< of GLUE or of pictures; folder of its files
  std::string out{};
  std::string attention = "universal";
  config::OptionMap attention_options{};
  int64_t max_length = 128, samples = 0, batch = 32;
  int64_t seed = 1;
  c10::Device device = c10::Device(c10::kCPU);
  std::string autocast = "none";

  std::string start = "softmax";  ///< or random: as the mechanism starts
  bool bases = true;              ///< see LayerStudent
  int64_t fit_steps = 600;        ///< of the start, before stage 1
  double fit_lr = 1e-2;

  std::string stage_one_loss = "rows";  ///< or outputs
  int64_t stage_one_epochs = 1;
  double stage_one_lr = 1e-3;

  int64_t stage_two_epochs = 3;  ///< 0: none
  double stage_two_lr = 3e-5;
  int64_t patience = 4;         ///< validations, four of them an epoch
  double teacher_weight = 0.5;  ///< of the softmax model's logits in the loss
  double temperature = 2.0;     ///< see logits_loss
  double states_weight = 1.0;   ///< see states_loss

  std::function<void(const std::string&)> say{};
  std::function<bool()> stop{};
};

/// A model's state on the way, judged on the task's test split.
struct Milestone {
  std::string name{};  ///< original, swapped, fitted, stage 1, stage 2
  train::Evaluation test{};
  double seconds = 0;  ///< that it took to come here from the one before
};

struct Conversion {
  std::string task{}, metric{}, attention{};
  std::string architecture{};
  ConversionOptions options{};
  std::vector<Milestone> milestones{};
  /// Divergence of the student's rows from the teacher's, [layer][head], over
  /// the validation split; empty for a mechanism without features.
  std::vector<std::vector<double>> before{}, after{};
  std::vector<double> stage_one_losses{};  ///< by tenths of the steps
  int64_t stage_one_parameters = 0;
  int64_t stage_two_step = 0;  ///< of the best validation
  bool interrupted = false;

  const Milestone* find(const std::string& name) const;
  /// The score's share of the original's; 0 without that milestone.
  double kept(const std::string& name) const;
};

/// Takes a softmax BERT or ViT that was trained for a task, swaps its attention
/// and recovers its accuracy: phi is started and, in stage 1, learns the
/// softmax rows; in stage 2 everything learns the task and from the softmax
/// model. Writes `out`, a folder that luna and transformers read, with
/// start.safetensors, phi as it was after the swap.
Conversion convert_model(const ConversionOptions& options);

/// conversion.json.
std::string conversion_json(const Conversion& conversion);

}  // namespace luna::distill
