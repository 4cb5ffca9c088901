#pragma once

#include <ATen/core/Tensor.h>
#include <luna/ops/feature_map.h>

#include <cstdint>
#include <random>
#include <vector>

namespace luna::testing {

/// Numbers for tests: float64 on the CPU, the same for the same seed.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  at::Tensor normal(at::IntArrayRef sizes, double scale = 1.0);
  at::Tensor uniform(at::IntArrayRef sizes, double low, double high);
  /// bool; each true with the given chance.
  at::Tensor coins(at::IntArrayRef sizes, double chance = 0.5);

  int64_t integer(int64_t low, int64_t high);  ///< both ends included
  bool coin(double chance = 0.5);
  template <typename T>
  T pick(const std::vector<T>& choices) {
    return choices[integer(0, static_cast<int64_t>(choices.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

struct FeatureMapSizes {
  int64_t width = 4;        ///< d
  int64_t projections = 3;  ///< M
  int64_t channels = 2;     ///< L
  int64_t hidden = 5;       ///< h
  int64_t heads = 0;        ///< above 0: a projection per head
  bool shared_trunk = false;
};

/// Knots spread over the arguments, most features alive.
ops::FeatureMapParameters random_parameters(Random& random,
                                            const FeatureMapSizes& sizes);

/// cu_seqlens of the given lengths.
at::Tensor cumulative(const std::vector<int64_t>& lengths,
                      at::ScalarType dtype = at::kInt);

}  // namespace luna::testing
