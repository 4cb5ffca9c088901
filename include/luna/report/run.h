#pragma once

#include <luna/train/train_config.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "luna/report/learned_psi.h"

namespace luna::report {

/// A line of metrics; what it does not have is empty.
struct Metric {
  std::optional<double> loss{};
  /// Share of samples, 0..1; in a validation of translation BLEU / 100.
  std::optional<double> accuracy{};
  std::optional<double> steps_per_s{};
};

using Curve = std::map<std::int64_t, Metric>;  ///< by step

/// One test sample and what the model made of it.
struct Prediction {
  std::string kind{};         ///< text, picture, symbols, pair, translation
  std::string text{};         ///< not of pictures
  std::string second{};       ///< of pairs; of translations the reference
  std::string translation{};  ///< the model's
  std::vector<std::uint8_t> pixels{};
  std::int64_t height = 0, width = 0, channels = 1;
  std::int64_t label = 0, predicted = 0;
  std::vector<double> probabilities{};

  bool right() const { return label == predicted; }
};

/// What a run folder holds. A run that is still going, or that was cut short,
/// has less of it; `notes` say what is missing and why.
struct Run {
  std::string folder{}, name{};
  std::string task{}, attention{}, title{};  ///< title: "nested-16"
  std::optional<train::TrainConfig> config{};
  std::int64_t seed = 0;
  bool finished = false;  ///< tested at its end
  std::optional<std::int64_t> steps{}, planned_steps{}, best_step{};
  std::optional<std::int64_t> length{}, batch{};
  /// What the splits really had: train, validation, test.
  std::optional<std::array<std::int64_t, 3>> samples{};
  std::optional<std::int64_t> parameters{}, attention_parameters{};
  std::optional<double> validation_accuracy{}, test_accuracy{}, test_loss{};
  std::optional<double> steps_per_s{}, tokens_per_s{}, peak_memory{};
  std::optional<double> load_share{}, seconds{};
  /// Runs that its sweep let go at once, at most; empty of runs from before it
  /// was recorded. 1 does not say that nothing else used the machine.
  std::optional<std::int64_t> side_by_side{};
  /// Of translation: what the data is called, what tells it from other data,
  /// and BLEU of other test sets by their names (scores/NAME.json).
  std::string data_name{}, data_key{};
  std::map<std::string, double> scores{};
  std::string machine{};   ///< "2 threads of AMD EPYC (avx512)"
  std::string versions{};  ///< "luna 0.1.0, torch 2.11.0"
  std::string commit{};    ///< of luna's sources
  Curve train{}, validation{};
  std::int64_t skipped_steps = 0;
  std::vector<std::string> classes{};
  std::vector<Prediction> predictions{};
  /// Of universal attention: how the tested weights use their features, and
  /// psi, a layer each.
  std::vector<train::FeatureUse> features{};
  std::vector<LearnedPsi> psi{};
  std::vector<std::string> notes{};

  /// Of the test, or of the best validation so far.
  std::optional<double> accuracy() const;
  /// The name of a class; its number where it has none.
  std::string class_name(std::int64_t label) const;
};

/// Does the folder look like one that `luna train` wrote?
bool is_run_folder(const std::string& folder);

/// The run folders among `paths` and inside of them, in order, each once.
/// Throws for a path that is none and holds none.
std::vector<std::string> find_runs(const std::vector<std::string>& paths);

/// The file of the averaged or else the best weights, else the last
/// checkpoint's; empty if there is none.
std::string weights_file(const std::string& folder);

/// Everything the report needs; throws only if it is no run folder.
Run read_run(const std::string& folder);

}  // namespace luna::report
