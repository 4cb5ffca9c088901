#include "luna/report/psi_measures.h"

#include <cmath>

namespace luna::report {
namespace {

std::vector<double> normal_weights(const std::vector<double>& u) {
  std::vector<double> weights;
  double sum = 0;
  for (const double x : u) {
    weights.push_back(std::exp(-x * x / 2));
    sum += weights.back();
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

double product(const std::vector<double>& f, const std::vector<double>& g,
               const std::vector<double>& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i] * f[i] * g[i];
  }
  return sum;
}

Functions centred(Functions functions, const std::vector<double>& weights) {
  constexpr double kRounding = 1e-24;  // of squares
  const std::vector<double> ones(weights.size(), 1);
  for (std::vector<double>& f : functions) {
    const double mean = product(f, ones, weights);
    const double size = product(f, f, weights);
    for (double& value : f) value -= mean;
    if (product(f, f, weights) <= kRounding * size) f.assign(f.size(), 0);
  }
  return functions;
}

/// Sum of squares of all products of one of a with one of b.
double squared_products(const Functions& a, const Functions& b,
                        const std::vector<double>& weights) {
  double sum = 0;
  for (const auto& f : a) {
    for (const auto& g : b) sum += std::pow(product(f, g, weights), 2);
  }
  return sum;
}

}  // namespace

double effective_channels(const Functions& functions,
                          const std::vector<double>& u) {
  const std::vector<double> weights = normal_weights(u);
  double trace = 0;
  for (const auto& f : functions) trace += product(f, f, weights);
  const double squares = squared_products(functions, functions, weights);
  return squares > 0 ? trace * trace / squares : 0;
}

double kernel_alignment(const Functions& a, const Functions& b,
                        const std::vector<double>& u) {
  const std::vector<double> weights = normal_weights(u);
  const Functions x = centred(a, weights), y = centred(b, weights);
  const double size = std::sqrt(squared_products(x, x, weights) *
                                squared_products(y, y, weights));
  return size > 0 ? squared_products(x, y, weights) / size : 0;
}

Functions bell_kernel(const std::vector<double>& u) {
  constexpr int kTerms = 60;  // u v is at most 16: 16^60 / 60! < 1e-9
  Functions functions;
  std::vector<double> power;  // u^k / sqrt(k!) exp(-u^2 / 2)
  for (const double x : u) power.push_back(std::exp(-x * x / 2));
  for (int k = 1; k <= kTerms; ++k) {
    functions.push_back(power);
    for (std::size_t i = 0; i < u.size(); ++i) {
      power[i] *= u[i] / std::sqrt(static_cast<double>(k));
    }
  }
  return functions;
}

Functions straight_kernel(const std::vector<double>& u) { return {u}; }

}  // namespace luna::report
