#include "support/two_sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace luna::testing {

namespace {

std::vector<double> scales(const Rows& rows) {
  std::vector<double> scale(rows.front().size(), 1.0);
  const auto n = static_cast<double>(rows.size());
  for (size_t c = 0; c < scale.size(); ++c) {
    double sum = 0, squares = 0;
    for (const auto& row : rows) {
      sum += row[c];
      squares += row[c] * row[c];
    }
    const double variance = squares / n - sum / n * (sum / n);
    if (variance > 1e-12) scale[c] = 1 / std::sqrt(variance);
  }
  return scale;
}

/// Distances of all rows to all, and which of them are in the first sample.
class Energy {
 public:
  Energy(const Rows& a, const Rows& b) : size_(a.size() + b.size()) {
    const std::vector<double> scale = scales(a);
    Rows rows = a;
    rows.insert(rows.end(), b.begin(), b.end());
    for (auto& row : rows) {
      for (size_t c = 0; c < row.size(); ++c) row[c] *= scale[c];
    }
    distances_.resize(size_ * size_);
    row_sums_.resize(size_);
    for (size_t i = 0; i < size_; ++i) {
      for (size_t j = 0; j < size_; ++j) {
        double squares = 0;
        for (size_t c = 0; c < scale.size(); ++c) {
          const double d = rows[i][c] - rows[j][c];
          squares += d * d;
        }
        distances_[i * size_ + j] = std::sqrt(squares);
        row_sums_[i] += distances_[i * size_ + j];
      }
    }
  }

  /// Energy distance between the first `count` rows of `order` and the rest.
  double distance(const std::vector<size_t>& order, size_t count) const {
    double between = 0, first = 0, second = 0;
    for (size_t i = 0; i < count; ++i) {
      const double* row = &distances_[order[i] * size_];
      double sum = 0;
      for (size_t j = count; j < size_; ++j) sum += row[order[j]];
      between += sum;
      first += row_sums_[order[i]] - sum;
    }
    for (size_t j = count; j < size_; ++j) second += row_sums_[order[j]];
    second -= between;
    const auto n = static_cast<double>(count);
    const auto m = static_cast<double>(size_ - count);
    return 2 * between / (n * m) - first / (n * n) - second / (m * m);
  }

 private:
  size_t size_;
  std::vector<double> distances_{}, row_sums_{};
};

}  // namespace

double energy_test(const Rows& a, const Rows& b, int64_t permutations,
                   uint64_t seed) {
  const Energy energy(a, b);
  std::vector<size_t> order(a.size() + b.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const double observed = energy.distance(order, a.size());
  std::mt19937_64 random(seed);
  int64_t as_far = 1;  // the order observed is one of them
  for (int64_t i = 0; i < permutations; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    as_far += energy.distance(order, a.size()) >= observed;
  }
  return static_cast<double>(as_far) / static_cast<double>(permutations + 1);
}

}  // namespace luna::testing
