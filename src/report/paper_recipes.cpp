#include "luna/report/paper_recipes.h"

#include <luna/models/classifier.h>

#include <algorithm>

namespace luna::report {
namespace {

std::vector<PaperRecipe> all_recipes() {
  const auto harness = [](const char* task, int64_t batch, double lr,
                          int64_t steps) {
    return PaperRecipe{"universal", task, "pre", 2,  64, 128,  2,
                       batch,       lr,   0,     .1, .1, steps};
  };
  return {
      harness("listops", 32, 1e-4, 50000),
      harness("text", 32, 1e-4, 50000),
      harness("retrieval", 16, 1e-4, 50000),
      harness("image", 64, 1e-3, 50000),
      harness("pathfinder", 128, 1e-4, 60000),
      {"nested", "listops", "post", 1, 512, 2048, 8, 32, 1e-4, 1e-4, .1, .1,
       5000},
      {"nested", "text", "post", 4, 256, 1024, 4, 32, 5e-5, 1e-4, .3, .3,
       20000},
      {"nested", "retrieval", "post", 4, 128, 512, 4, 32, 5e-4, 1e-4, .1, .1,
       20000},
      {"nested", "image", "post", 1, 64, 128, 8, 256, 5e-3, 0, .3, .1, 35000},
      {"nested", "pathfinder", "post", 1, 128, 128, 4, 512, 1e-3, 0, .2, .1,
       62500}};
}

}  // namespace

const std::vector<PaperRecipe>& paper_recipes() {
  static const std::vector<PaperRecipe> kRecipes = all_recipes();
  return kRecipes;
}

const PaperRecipe* recipe_of(const train::TrainConfig& config) {
  if (!model_change(config).empty()) return nullptr;
  const models::ModelConfig& model = config.model;
  // The stand-in is trained as what it stands for.
  const std::string task =
      config.data.task == "retrieval-imdb" ? "retrieval" : config.data.task;
  const auto& all = paper_recipes();
  const auto found = std::ranges::find_if(all, [&](const PaperRecipe& r) {
    return r.task == task && r.norm == model.norm && r.layers == model.layers &&
           r.width == model.width && r.ffn == model.ffn &&
           r.heads == model.heads &&
           r.batch == config.batch * config.accumulate &&
           r.lr == config.optimizer.lr &&
           r.weight_decay == config.optimizer.weight_decay &&
           r.dropout == model.dropout &&
           (r.attention_dropout == model.attention_dropout ||
            !models::has_attention_dropout(model.attention)) &&
           model.activation_dropout == 0;
  });
  return found == all.end() ? nullptr : &*found;
}

std::string model_change(const train::TrainConfig& config) {
  if (config.data.augment) return "augment";
  const models::ModelConfig& model = config.model;
  if (model.local > 0) return "local";
  if (model.black != "pixel") return "black";
  if (model.positions != "learned") return model.positions;
  return model.embedding == "table" ? "" : model.embedding;
}

}  // namespace luna::report
