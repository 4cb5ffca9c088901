#include "train/tiny_translation.h"

namespace luna::testing {

data::ParallelText tiny_sentences(int count) {
  static const char* const kWords[][2] = {
      {"a", "ein"},   {"dog", "Hund"}, {"cat", "Katze"},  {"sees", "sieht"},
      {"the", "der"}, {"red", "rot"},  {"house", "Haus"}, {"runs", "läuft"}};
  data::ParallelText text;
  for (int i = 0; i < count; ++i) {
    std::string source, target;
    // The first two words make it distinct.
    for (int word = 0; word < 2 + i % 4; ++word) {
      const auto& [from, to] =
          kWords[word == 1 ? i / 8 % 8 : (i + 3 * word) % 8];
      source += (word > 0 ? " " : "") + std::string(from);
      target = std::string(to) + (word > 0 ? " " : "") + target;
    }
    text.add(source, target);
  }
  return text;
}

train::Splits tiny_translation(int count, int judged) {
  const data::ParallelText text = tiny_sentences(count);
  text::BpeLearner learner;
  for (const auto& [source, target] : text.pairs()) {
    learner.add(source);
    learner.add(target);
  }
  const text::Bpe tokenizer = learner.learn({.merges = 30});
  int64_t none = 0;
  const auto all = data::TranslationData::encode(text, tokenizer, 0, none);
  std::vector<int64_t> first(judged);
  for (int i = 0; i < judged; ++i) first[i] = i;
  const auto split = [&](data::TranslationData data) {
    return std::make_shared<data::TranslationDataset>("tiny", std::move(data),
                                                      tokenizer);
  };
  return {.train = split(all),
          .validation = split(all.some(first)),
          .test = split(all.some(first))};
}

train::TrainConfig tiny_translation_config(const std::string& attention) {
  train::TrainConfig config{.name = "tiny"};
  config.data.task = data::kTranslationTask;
  config.model = {.attention = attention,
                  .layers = 1,
                  .width = 32,
                  .ffn = 32,
                  .heads = 2,
                  .memory_length = 4,
                  .norm = "pre",
                  .positions = "sinusoidal",
                  .activation = "relu",
                  .dropout = 0.1,
                  .init = "xavier"};
  config.optimizer.lr = 0.005;
  config.schedule = {.name = "constant", .warmup = 4};
  config.translation = {.batch_tokens = 64, .beam = 2};
  config.label_smoothing = 0.1;
  config.steps = 8;
  config.batch = 8;
  config.log_every = 2;
  config.eval_every = 4;
  config.checkpoint_every = 2;
  config.keep_checkpoints = 3;
  config.average = 3;
  return config;
}

}  // namespace luna::testing
