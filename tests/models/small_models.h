#pragma once

// Small models of every kind, and batches for them.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/models/classifier.h>
#include <luna/nn/attention_registry.h>

#include <memory>
#include <string>
#include <vector>

#include "support/random.h"

namespace luna::models::testing {

using luna::testing::Random;

constexpr int64_t kVocabulary = 7, kClasses = 3, kLongest = 9;

inline data::TaskInfo small_task(bool pairs = false) {
  data::TaskInfo task;
  task.task = "small";
  task.vocabulary = kVocabulary;
  task.classes = kClasses;
  task.pairs = pairs;
  return task;
}

/// Pictures of kLongest pixels.
inline data::TaskInfo small_pictures() {
  data::TaskInfo task = small_task();
  task.height = task.width = 3;
  return task;
}

inline ModelConfig small_config(const std::string& attention) {
  ModelConfig config;
  config.attention = attention;
  config.width = 12;
  config.ffn = 10;
  config.heads = 3;
  config.memory_length = 4;
  config.dropout = 0;
  return config;
}

/// A mechanism in a kind of model.
struct Kind {
  std::string attention, norm, pooling;
};
inline void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.attention << "_" << kind.norm << "_" << kind.pooling;
}
inline std::string name_of(const ::testing::TestParamInfo<Kind>& info) {
  return ::testing::PrintToString(info.param);
}

inline std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (const auto& info : nn::attentions()) {
    for (const char* norm : {"pre", "post"}) {
      kinds.push_back({info.name, norm, "cls"});
      kinds.push_back({info.name, norm, "mean"});
      if (info.traits.memory) kinds.push_back({info.name, norm, "memory"});
    }
  }
  return kinds;
}

inline ModelConfig config_of(const Kind& kind) {
  auto config = small_config(kind.attention);
  config.norm = kind.norm;
  config.pooling = kind.pooling;
  return config;
}

/// In float64, every parameter random: norms and biases start at 1 and 0.
inline void make_random(torch::nn::Module& model) {
  model.to(at::kDouble);
  at::NoGradGuard no_grad;
  Random random(4);
  for (auto& entry : model.named_parameters()) {
    entry.value().copy_(random.normal(entry.value().sizes(), 0.25));
  }
}

inline std::shared_ptr<Model> random_model(const ModelConfig& config,
                                           const data::TaskInfo& task) {
  at::manual_seed(3);  // of buffers
  auto model = make_model(config, task, kLongest);
  make_random(*model);
  return model;
}
inline std::shared_ptr<Model> random_model(const ModelConfig& config,
                                           bool pairs = false) {
  return random_model(config, small_task(pairs));
}

/// Random ids; beyond its length every row is padding.
inline data::Sequences sequences(const std::vector<int64_t>& lengths, int64_t n,
                                 uint64_t seed = 5) {
  const auto rows = static_cast<int64_t>(lengths.size());
  Random random(seed);
  const auto ids = random.uniform({rows, n}, 0, kVocabulary).to(at::kLong);
  data::Sequences result{ids, at::tensor(lengths, at::kLong)};
  result.ids.masked_fill_(at::arange(n).ge(result.lengths.unsqueeze(1)),
                          data::pad_id(small_task()));
  return result;
}

inline data::Batch batch_of(data::Sequences first) {
  data::Batch batch;
  batch.labels = at::arange(first.ids.size(0)).remainder(kClasses);
  batch.first = std::move(first);
  return batch;
}

/// Row i alone, without its padding.
inline data::Sequences row(const data::Sequences& all, int64_t i) {
  const auto length = all.lengths[i].item<int64_t>();
  return {all.ids.narrow(0, i, 1).narrow(1, 0, length),
          all.lengths.narrow(0, i, 1)};
}

inline void expect_near(const at::Tensor& actual, const at::Tensor& expected,
                        double tolerance = 1e-10) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  ASSERT_TRUE(actual.isfinite().all().item<bool>()) << actual;
  EXPECT_LE((actual - expected).abs().max().item<double>(), tolerance)
      << "expected numbers up to " << expected.abs().max().item<double>();
}

}  // namespace luna::models::testing
