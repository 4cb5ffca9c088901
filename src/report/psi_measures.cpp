#include "luna/report/psi_measures.h"

#include <algorithm>
#include <cmath>

namespace luna::report {
namespace {

double mean_product(const std::vector<double>& f,
                    const std::vector<double>& g) {
  double sum = 0;
  for (std::size_t i = 0; i < f.size(); ++i) sum += f[i] * g[i];
  return f.empty() ? 0 : sum / static_cast<double>(f.size());
}

double mean(const std::vector<double>& f) {
  return mean_product(f, std::vector<double>(f.size(), 1));
}

double squares(const Kernel& kernel) {
  double sum = 0;
  for (const auto& row : kernel) sum += mean_product(row, row);
  return sum;
}

/// Rows and columns of mean 0. Kernels are symmetric.
Kernel centred(Kernel kernel) {
  constexpr double kRounding = 1e-24;  // of squares
  const double size = squares(kernel);
  std::vector<double> means;
  for (const auto& row : kernel) means.push_back(mean(row));
  const double all = mean(means);
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    for (std::size_t j = 0; j < kernel.size(); ++j) {
      kernel[i][j] += all - means[i] - means[j];
    }
  }
  if (squares(kernel) <= kRounding * size) {
    for (auto& row : kernel) row.assign(row.size(), 0);
  }
  return kernel;
}

template <class Entry>
Kernel kernel_by(std::size_t samples, Entry entry) {
  Kernel kernel(samples, std::vector<double>(samples));
  for (std::size_t i = 0; i < samples; ++i) {
    for (std::size_t j = 0; j < samples; ++j) kernel[i][j] = entry(i, j);
  }
  return kernel;
}

}  // namespace

double effective_channels(const Functions& functions) {
  double trace = 0, sum = 0;
  for (const auto& f : functions) {
    trace += mean_product(f, f);
    for (const auto& g : functions) sum += std::pow(mean_product(f, g), 2);
  }
  return sum > 0 ? trace * trace / sum : 0;
}

Kernel kernel_of(const Functions& functions) {
  const std::size_t samples = functions.empty() ? 0 : functions.front().size();
  return kernel_by(samples, [&](std::size_t i, std::size_t j) {
    double sum = 0;
    for (const auto& f : functions) sum += f[i] * f[j];
    return sum;
  });
}

Kernel bell_kernel(const std::vector<double>& u) {
  std::vector<double> apart = u;
  const double middle = mean(u);
  for (double& x : apart) x -= middle;
  const double variance = mean_product(apart, apart);
  return kernel_by(u.size(), [&](std::size_t i, std::size_t j) {
    const double distance = u[i] - u[j];
    return distance == 0 ? 1 : std::exp(-distance * distance / (2 * variance));
  });
}

Kernel straight_kernel(const std::vector<double>& u) { return kernel_of({u}); }

double kernel_alignment(const Kernel& a, const Kernel& b) {
  const Kernel x = centred(a), y = centred(b);
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += mean_product(x[i], y[i]);
  const double size = std::sqrt(squares(x) * squares(y));
  return size > 0 ? std::clamp(sum / size, 0.0, 1.0) : 0;
}

}  // namespace luna::report
