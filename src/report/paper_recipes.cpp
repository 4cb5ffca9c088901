#include "luna/report/paper_recipes.h"

#include <luna/models/model.h>
#include <luna/nn/attention_registry.h>

#include <algorithm>

#include "config/json.h"

namespace luna::report {
namespace {

using train::TrainConfig;

PaperRecipe harness(const char* task, int64_t batch, double lr, int64_t warmup,
                    int64_t steps) {
  TrainConfig c;
  c.data.task = task;
  c.model.layers = 2;
  c.model.width = 64;
  c.model.ffn = 128;
  c.model.heads = 2;
  c.model.norm = "pre";
  c.model.dropout = c.model.attention_dropout = 0.1;
  c.model.head = "mlp";
  c.model.head_hidden = 128;
  c.optimizer.lr = lr;
  c.schedule.warmup = warmup;
  c.schedule.start = 0.1;
  c.schedule.floor = 0.4;
  c.steps = steps;
  c.batch = batch;
  c.clip = 5;
  return {"universal", c};
}

/// Columns of the nested paper's table of settings; `start` is 1e-7 / lr.
struct Settings {
  const char* task;
  int64_t layers, width, ffn, heads;
  double lr, start;
  int64_t batch, warmup, steps;
  double dropout, attention_dropout, weight_decay;
  int64_t head_hidden;
  const char* pooling;
};

PaperRecipe nested(const Settings& s) {
  TrainConfig c;
  c.data.task = s.task;
  c.model.layers = s.layers;
  c.model.width = s.width;
  c.model.ffn = s.ffn;
  c.model.heads = s.heads;
  c.model.norm = "post";
  c.model.embedding_norm = true;
  c.model.dropout = s.dropout;
  c.model.attention_dropout = s.attention_dropout;
  c.model.pooling = s.pooling;
  if (c.data.task == "retrieval") c.model.pair_features = "concat";
  c.model.head = "mlp";
  c.model.head_hidden = s.head_hidden;
  c.model.init = "xavier";
  c.optimizer.lr = s.lr;
  c.optimizer.weight_decay = s.weight_decay;
  c.schedule.name = "inverse_sqrt";
  c.schedule.warmup = s.warmup;
  c.schedule.start = s.start;
  c.steps = s.steps;
  c.batch = s.batch;
  return {"nested", c};
}

std::vector<PaperRecipe> all_recipes() {
  std::vector<PaperRecipe> all = {
      harness("listops", 32, 1e-4, 5000, 50000),
      harness("text", 32, 1e-4, 4000, 50000),
      harness("retrieval", 16, 1e-4, 5000, 50000),
      harness("image", 64, 1e-3, 1000, 50000),
      harness("pathfinder", 128, 1e-4, 5000, 60000),
      nested({"listops", 1, 512, 2048, 8, 1e-4, 1e-3, 32, 1000, 5000, .1, .1,
              1e-4, 2048, "cls"}),
      nested({"text", 4, 256, 1024, 4, 5e-5, 2e-3, 32, 8000, 20000, .3, .3,
              1e-4, 1024, "cls"}),
      nested({"retrieval", 4, 128, 512, 4, 5e-4, 2e-4, 32, 8000, 20000, .1, .1,
              1e-4, 512, "cls"}),
      nested({"image", 1, 64, 128, 8, 5e-3, 2e-5, 256, 4000, 35000, .3, .1, 0,
              128, "cls"}),
      nested({"pathfinder", 1, 128, 128, 4, 1e-3, 1e-4, 512, 4000, 62500, .2,
              .1, 0, 256, "mean"})};
  for (PaperRecipe& recipe : all) {
    TrainConfig& c = recipe.config;
    const bool texts = c.data.task == "text" || c.data.task == "retrieval";
    if (texts) c.data.max_length = 4000;
  }
  return all;
}

/// A mechanism of a later luna may.
bool may_drop(const std::string& attention) {
  const auto& all = nn::attentions();
  return std::ranges::find(all, attention, &nn::AttentionInfo::name) ==
             all.end() ||
         models::has_attention_dropout(attention);
}

/// A config's recipe: what else it says is as in any other.
nlohmann::ordered_json recipe_in(TrainConfig c) {
  const TrainConfig any;
  if (c.data.task == "retrieval-imdb") c.data.task = "retrieval";
  if (!may_drop(c.model.attention)) c.model.attention_dropout = 0;
  // The nested paper pools [CLS], and in rows of their own the memory.
  if (c.model.pooling == "memory") c.model.pooling = "cls";
  c.batch *= c.accumulate;
  c.accumulate = 1;
  c.name = any.name;
  c.data.path = any.data.path;
  c.model.attention = any.model.attention;
  c.model.attention_options = any.model.attention_options;
  c.model.memory_length = any.model.memory_length;
  c.model.max_positions = any.model.max_positions;
  // Of translation alone.
  c.translation = any.translation;
  // How far and how often, by what arithmetic, and what is written down.
  c.steps = any.steps;
  c.seed = any.seed;
  c.patience = any.patience;
  c.eval_every = any.eval_every;
  c.eval_batch = any.eval_batch;
  c.log_every = any.log_every;
  c.checkpoint_every = any.checkpoint_every;
  c.keep_checkpoints = any.keep_checkpoints;
  c.autocast = any.autocast;
  c.pack = any.pack;
  c.repeatable = any.repeatable;
  return config::write_json(c);
}

}  // namespace

const std::vector<PaperRecipe>& paper_recipes() {
  static const std::vector<PaperRecipe> kRecipes = all_recipes();
  return kRecipes;
}

const PaperRecipe* recipe_of(const TrainConfig& config) {
  const auto& all = paper_recipes();
  const auto own = recipe_in(config);
  const auto found = std::ranges::find_if(all, [&](const PaperRecipe& recipe) {
    // A dropout that this mechanism does not read is no difference.
    TrainConfig of_paper = recipe.config;
    of_paper.model.attention = config.model.attention;
    return recipe_in(of_paper) == own;
  });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace luna::report
