#include "data/lanczos.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace luna::data {

namespace {

constexpr double kLobes = 3.0;

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) {
  return std::abs(x) < kLobes ? sinc(x) * sinc(x / kLobes) : 0.0;
}

/// Weights of the source pixels first, first + 1, ... of one result pixel.
struct Taps {
  int64_t first = 0;
  std::vector<double> weights{};
};

std::vector<Taps> taps(int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double reach = kLobes * scale;
  std::vector<Taps> all(to);
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first =
        std::max<int64_t>(static_cast<int64_t>(centre - reach + 0.5), 0);
    const auto last =
        std::min<int64_t>(static_cast<int64_t>(centre + reach + 0.5), from);
    all[i].first = first;
    double sum = 0.0;
    for (int64_t x = first; x < last; ++x) {
      const double weight =
          lanczos((static_cast<double>(x) - centre + 0.5) / scale);
      all[i].weights.push_back(weight);
      sum += weight;
    }
    for (double& weight : all[i].weights) weight /= sum;
  }
  return all;
}

uint8_t to_byte(double value) {
  return static_cast<uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
}

}  // namespace

SquareImage shrink_lanczos(const SquareImage& image, int64_t size) {
  const std::vector<Taps> all = taps(image.size, size);
  std::vector<uint8_t> rows(image.size * size);
  for (int64_t y = 0; y < image.size; ++y) {
    for (int64_t x = 0; x < size; ++x) {
      double sum = 0.0;
      for (size_t i = 0; i < all[x].weights.size(); ++i) {
        sum += all[x].weights[i] *
               image.at(y, all[x].first + static_cast<int64_t>(i));
      }
      rows[y * size + x] = to_byte(sum);
    }
  }
  SquareImage small(size);
  for (int64_t y = 0; y < size; ++y) {
    for (int64_t x = 0; x < size; ++x) {
      double sum = 0.0;
      for (size_t i = 0; i < all[y].weights.size(); ++i) {
        sum += all[y].weights[i] *
               rows[(all[y].first + static_cast<int64_t>(i)) * size + x];
      }
      small.at(y, x) = to_byte(sum);
    }
  }
  return small;
}

}  // namespace luna::data
