#pragma once

// What a model learns from a batch, and the batch with its sequences packed.

#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <map>

#include "models/small_models.h"
#include "train/train_step.h"

namespace luna::models::testing {

/// The same sequences, `empty` ones and a filler of so many `pad`s.
inline data::Sequences packed(const data::Sequences& padded, int64_t filler,
                              int64_t empty = 0,
                              int64_t pad = data::pad_id(small_task())) {
  std::vector<at::Tensor> rows;
  std::vector<int64_t> starts{0};
  int64_t longest = filler;
  for (int64_t i = 0; i < padded.ids.size(0); ++i) {
    rows.push_back(row(padded, i).ids.squeeze(0));
    starts.push_back(starts.back() + rows.back().size(0));
    longest = std::max(longest, rows.back().size(0));
  }
  starts.insert(starts.end(), empty, starts.back());
  rows.push_back(at::full({filler}, pad, at::kLong));
  starts.push_back(starts.back() + filler);
  return {.ids = at::cat(rows).unsqueeze(0),
          .lengths = at::constant_pad_nd(padded.lengths, {0, empty}),
          .packed = data::Packing{at::tensor(starts, at::kLong), longest}};
}

/// On the CPU, wherever the model is.
struct Learnt {
  at::Tensor logits;  ///< of real labels
  std::map<std::string, at::Tensor> gradients{};
};

inline Learnt learn(Model& model, const data::Batch& batch) {
  model.zero_grad();
  const auto there =
      train::to_device(batch, model.parameters().front().device());
  const auto logits = model.forward(there);
  torch::nn::functional::cross_entropy(
      logits, there.labels,
      torch::nn::CrossEntropyLossOptions().ignore_index(data::kNoLabel))
      .backward();
  Learnt learnt{logits.detach().cpu().index({batch.labels.ne(data::kNoLabel)})};
  for (const auto& entry : model.named_parameters()) {
    if (!entry.value().grad().defined()) continue;
    learnt.gradients[entry.key()] = entry.value().grad().cpu().clone();
  }
  return learnt;
}

inline void expect_alike(const Learnt& actual, const Learnt& expected,
                         double tolerance = 1e-10) {
  expect_near(actual.logits, expected.logits, tolerance);
  // A parameter that nothing depends on has no gradient, or one of zeros.
  auto rest = actual.gradients;
  for (const auto& [name, gradient] : expected.gradients) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(rest.contains(name) || !gradient.any().item<bool>());
    if (rest.contains(name)) expect_near(rest[name], gradient, tolerance);
    rest.erase(name);
  }
  for (const auto& [name, gradient] : rest) {
    EXPECT_FALSE(gradient.any().item<bool>()) << name;
  }
}

/// Each step of a model with dropout draws anew, and the seed decides what.
inline void expect_drops(Model& model, const data::Batch& batch) {
  at::manual_seed(1);
  const auto first = learn(model, batch);
  EXPECT_FALSE(at::equal(learn(model, batch).logits, first.logits));
  at::manual_seed(1);
  expect_alike(learn(model, batch), first, 0.0);
}

}  // namespace luna::models::testing
