#include "support/random.h"

#include <ATen/ATen.h>

#include <cmath>

namespace luna::testing {

using at::Tensor;

Tensor Random::normal(at::IntArrayRef sizes, double scale) {
  std::normal_distribution<double> draw(0.0, scale);
  Tensor result = at::empty(sizes, at::kDouble);
  double* data = result.data_ptr<double>();
  for (int64_t i = 0; i < result.numel(); ++i) data[i] = draw(engine_);
  return result;
}

Tensor Random::uniform(at::IntArrayRef sizes, double low, double high) {
  std::uniform_real_distribution<double> draw(low, high);
  Tensor result = at::empty(sizes, at::kDouble);
  double* data = result.data_ptr<double>();
  for (int64_t i = 0; i < result.numel(); ++i) data[i] = draw(engine_);
  return result;
}

Tensor Random::coins(at::IntArrayRef sizes, double chance) {
  return uniform(sizes, 0.0, 1.0) < chance;
}

int64_t Random::integer(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(engine_);
}

bool Random::coin(double chance) {
  return std::bernoulli_distribution(chance)(engine_);
}

ops::FeatureMapParameters random_parameters(Random& random,
                                            const FeatureMapSizes& sizes) {
  const auto [d, m, channels, hidden, heads, shared_trunk] = sizes;
  const int64_t trunks = shared_trunk ? 1 : channels;
  std::vector<int64_t> projection{m, d}, bias{m};
  if (heads > 0) {
    projection.insert(projection.begin(), heads);
    bias.insert(bias.begin(), heads);
  }
  return {random.normal(projection, 1 / std::sqrt(d)),
          random.normal(bias, 0.3),
          random.normal({trunks, hidden}),
          random.normal({trunks, hidden}, 0.7),
          random.normal({channels, hidden}, 1 / std::sqrt(hidden)),
          random.uniform({channels}, 0.1, 0.8)};
}

Tensor cumulative(const std::vector<int64_t>& lengths, at::ScalarType dtype) {
  std::vector<int64_t> ends{0};
  for (int64_t length : lengths) ends.push_back(ends.back() + length);
  return at::tensor(ends, at::kLong).to(dtype);
}

}  // namespace luna::testing
