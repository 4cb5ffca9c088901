#include <c10/util/Exception.h>
#include <luna/train/metrics.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

namespace luna::train {
namespace {

template <class Value>
void check(const char* name, std::span<const Value> labels,
           std::span<const Value> predictions) {
  TORCH_CHECK_VALUE(!labels.empty() && labels.size() == predictions.size(),
                    name,
                    ": expected as many predictions as labels, and one "
                    "or more, got ",
                    predictions.size(), " and ", labels.size());
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(values.size());
}

/// From 1; equal values have the mean of their ranks.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) {
      ++end;
    }
    const double rank = static_cast<double>(begin + end + 1) / 2;
    for (; begin < end; ++begin) ranks[order[begin]] = rank;
  }
  return ranks;
}

}  // namespace

double accuracy(std::span<const int64_t> labels,
                std::span<const int64_t> predictions) {
  check("accuracy", labels, predictions);
  int64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    right += labels[i] == predictions[i] ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

double f1(std::span<const int64_t> labels,
          std::span<const int64_t> predictions) {
  check("f1", labels, predictions);
  int64_t both = 0, either = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    both += labels[i] == 1 && predictions[i] == 1 ? 1 : 0;
    either += (labels[i] == 1 ? 1 : 0) + (predictions[i] == 1 ? 1 : 0);
  }
  return either == 0
             ? 0.0
             : 2.0 * static_cast<double>(both) / static_cast<double>(either);
}

double matthews(std::span<const int64_t> labels,
                std::span<const int64_t> predictions) {
  check("matthews", labels, predictions);
  struct Counts {
    double labels = 0, predictions = 0;
  };
  std::map<int64_t, Counts> counts;
  double right = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    ++counts[labels[i]].labels;
    ++counts[predictions[i]].predictions;
    right += labels[i] == predictions[i] ? 1 : 0;
  }
  const auto n = static_cast<double>(labels.size());
  // Covariances, times n squared.
  double between = right * n, of_labels = n * n, of_predictions = of_labels;
  for (const auto& [label, count] : counts) {
    between -= count.labels * count.predictions;
    of_labels -= count.labels * count.labels;
    of_predictions -= count.predictions * count.predictions;
  }
  const double scale = of_labels * of_predictions;
  return scale == 0 ? 0.0 : between / std::sqrt(scale);
}

double pearson(std::span<const double> labels,
               std::span<const double> predictions) {
  check("pearson", labels, predictions);
  const double x_mean = mean_of(labels), y_mean = mean_of(predictions);
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const double x = labels[i] - x_mean, y = predictions[i] - y_mean;
    xx += x * x;
    yy += y * y;
    xy += x * y;
  }
  if (xx == 0 || yy == 0) return std::numeric_limits<double>::quiet_NaN();
  return std::clamp(xy / (std::sqrt(xx) * std::sqrt(yy)), -1.0, 1.0);
}

double spearman(std::span<const double> labels,
                std::span<const double> predictions) {
  check("spearman", labels, predictions);
  return pearson(ranks_of(labels), ranks_of(predictions));
}

}  // namespace luna::train
