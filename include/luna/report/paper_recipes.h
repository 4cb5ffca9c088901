#pragma once

#include <luna/train/train_config.h>

#include <string>
#include <vector>

namespace luna::report {

/// By what both papers' tables of Long Range Arena were trained: the nested
/// paper's own recipe, and the universal paper's likely harness. What a config
/// says of attention, seed, steps and logs is no matter of the recipe.
struct PaperRecipe {
  std::string paper{};  ///< "universal" or "nested"
  train::TrainConfig config{};
};

const std::vector<PaperRecipe>& paper_recipes();

/// The one that a run is trained by, for so many steps or another number of
/// them, its memory pooled or not; nullptr where anything else differs. The
/// task retrieval-imdb is trained as retrieval, which it stands for.
const PaperRecipe* recipe_of(const train::TrainConfig& config);

}  // namespace luna::report
