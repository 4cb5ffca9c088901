#pragma once

#include <cstdint>
#include <span>

// What a task's predictions are judged by, as scikit-learn and scipy compute
// it. All take as many predictions as labels, at least one.

namespace luna::train {

double accuracy(std::span<const int64_t> labels,
                std::span<const int64_t> predictions);

/// Of class 1; 0 if it is neither there nor predicted.
double f1(std::span<const int64_t> labels,
          std::span<const int64_t> predictions);

/// Matthews' correlation of any number of classes >= 0; 0 if the labels or the
/// predictions are all of one class.
double matthews(std::span<const int64_t> labels,
                std::span<const int64_t> predictions);

/// Correlation of the values, and of their ranks (ties: the mean rank); NaN if
/// one side does not vary.
double pearson(std::span<const double> labels,
               std::span<const double> predictions);
double spearman(std::span<const double> labels,
                std::span<const double> predictions);

}  // namespace luna::train
