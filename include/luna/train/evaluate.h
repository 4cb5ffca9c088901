#pragma once

#include <luna/data/dataset.h>
#include <luna/models/model.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::train {

struct EvaluateOptions {
  int64_t batch = 32;
  int64_t samples = 0;  ///< as many, drawn by `seed`; 0: all
  uint64_t seed = 0;
  int64_t max_length = 0;
  std::string autocast = "none";
  int64_t beam = 1;              ///< translation: of the search
  double length_penalty = 1.0;   ///< translation: see models::BeamOptions
  std::function<bool()> stop{};  ///< asked before each batch
};

struct Evaluation {
  int64_t samples = 0;
  double loss = 0.0;      ///< mean cross-entropy (translation: of a token), or
                          ///< squared error of scores
  double accuracy = 0.0;  ///< 0 to 1 (translation: of the next token); 0 of
                          ///< scores
  int64_t classes = 0;    ///< translation: none
  std::string metric = "accuracy";  ///< the one that counts in the task
  double score = 0.0;               ///< its value
  double spearman = 0.0;            ///< beside pearson
  /// [classes * classes]: samples of class `label` taken for `predicted` at
  /// label * classes + predicted.
  std::vector<int64_t> confusion{};
};

/// What a model makes of a data set, without dropout, as often as asked.
/// Samples go by length, so that batches hold little padding. On a GPU the
/// data stays there, and batches of about one length are one CUDA graph.
class Evaluator {
 public:
  /// Model and data must outlive it.
  Evaluator(models::Model& model, const data::Dataset& data,
            const EvaluateOptions& options);
  ~Evaluator();
  Evaluator(Evaluator&&) noexcept;

  /// Nothing if `stop` said so.
  std::optional<Evaluation> run();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Once.
std::optional<Evaluation> evaluate(models::Model& model,
                                   const data::Dataset& data,
                                   const EvaluateOptions& options);

}  // namespace luna::train
