// How many operations a step of a translator is. On a GPU each is at least one
// kernel, and a step takes the time of so many launches: none may creep in.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/models/translator.h>

#include <map>

#include "support/operations.h"

namespace luna::models {
namespace {

void expect_operations(const std::string& attention, int64_t layers,
                       at::ScalarType dtype, int64_t wanted) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kBatch = 4, kSource = 9, kVocabulary = 100;
  Translator model({.attention = attention,
                    .layers = layers,
                    .width = 128,
                    .ffn = 256,
                    .heads = 2,
                    .memory_length = 16,
                    .norm = "pre",
                    .positions = "sinusoidal",
                    .activation = "relu",
                    .dropout = 0},
                   kVocabulary);
  model.to(dtype);
  model.eval();
  auto state = model.start(
      {.ids = at::randint(kVocabulary, {kBatch, kSource}, at::kLong),
       .lengths = at::full({kBatch}, kSource, at::kLong),
       .full = true});
  const auto ids = at::randint(kVocabulary, {kBatch}, at::kLong);
  model.step(ids, state);  // softmax's cache grows here
  const luna::testing::OperationCount count;
  model.step(ids, state);
  EXPECT_EQ(count.total(), wanted) << attention << ", " << layers << " layers, "
                                   << dtype << ": " << count.text();
}

TEST(StepOperations, AreFew) {
  // Of a layer: products of q, k and v in one, out; q, out; up, down: 6. Two
  // attentions: 2. A sum and a norm after each of three parts, which a GPU
  // does in one kernel and the CPU in two: 6.
  constexpr int kLayer = 14;
  // The embedding and its position, the first norm, logits.
  constexpr int kAround = 4;
  const std::map<std::string, int> more = {
      {"universal", 0}, {"nested", 0},
      {"softmax", 2},  // a key and a value are put into the cache
      {"linear", 4},   // elu and + 1: of q and k, of q
      {"rff", 12},     // a scaling, a product, sin, cos, both, a scaling
  };
  for (const auto& [attention, of_layer] : more) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t layers : {1, 3}) {
        expect_operations(attention, layers, dtype,
                          kAround + layers * (kLayer + of_layer));
      }
    }
  }
}

}  // namespace
}  // namespace luna::models
