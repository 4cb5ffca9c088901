#pragma once

#include <luna/train/train_config.h>

#include <string>
#include <vector>

namespace luna::report {

/// By what both papers' tables of Long Range Arena were trained: the nested
/// paper's own recipe, and the universal paper's likely harness, whatever the
/// attention.
struct PaperRecipe {
  std::string paper{};  ///< "universal" or "nested"
  std::string task{};
  std::string norm{};  ///< "pre" or "post"
  int64_t layers = 0, width = 0, ffn = 0, heads = 0;
  int64_t batch = 0;
  double lr = 0, weight_decay = 0;
  double dropout = 0, attention_dropout = 0;
  int64_t steps = 0;
};

const std::vector<PaperRecipe>& paper_recipes();

/// The one that a run is trained by, for so many steps or another number of
/// them; nullptr where anything else of it differs, or if the model has or sees
/// what the papers' do not (`model_change`).
const PaperRecipe* recipe_of(const train::TrainConfig& config);

/// What a run's model has or sees otherwise than the papers': "local" (sums
/// over neighbours beside attention), "sinusoidal" (positions), of pictures
/// "augment" (moved), "black" (which is padding), "line" (as grey values); or
/// empty.
std::string model_change(const train::TrainConfig& config);

}  // namespace luna::report
