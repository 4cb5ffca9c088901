#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace luna::models {

/// How many numbers each part of a model learns.
struct ParameterCounts {
  int64_t tokens = 0;     ///< the token embedding
  int64_t positions = 0;  ///< the position embedding
  int64_t attention = 0;  ///< projections and what the mechanism learns
  int64_t memory = 0;     ///< P_0 and the memory's norms
  int64_t ffn = 0;
  int64_t norms = 0;  ///< all but the memory's
  int64_t head = 0;
  int64_t other = 0;  ///< of models that no config describes

  int64_t total() const {
    return tokens + positions + attention + memory + ffn + norms + head + other;
  }
  /// The attention's own: models of one recipe are alike but for these.
  int64_t own() const { return attention + memory; }
};

/// By the names of the parameters, as docs/models.md has them.
ParameterCounts count_parameters(const torch::nn::Module& model);

}  // namespace luna::models
