#include "nn/psi_start.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

namespace luna::nn {
namespace {

constexpr double kOutermostKnot = 4, kOutermostTent = 2, kHighest = 20;

using Curve = std::function<double(int64_t channel, double u)>;

/// What Linear(1, hidden) and Linear(hidden, 1) do.
void start_as_torch(const PsiParameters& psi) {
  const double bound =
      1 / std::sqrt(static_cast<double>(psi.output_weight.size(1)));
  psi.hidden_weight.uniform_(-1, 1);
  psi.hidden_bias.uniform_(-1, 1);
  psi.output_weight.uniform_(-bound, bound);
  psi.output_bias.uniform_(-bound, bound);
}

/// Places of one trunk's knots on one side of 0: even steps, each drawn a
/// quarter of a step around its place (channels whose knots all coincide would
/// learn the same kinks).
std::vector<double> draw_knots(int64_t count) {
  const auto draws = at::rand({count}, at::kDouble);
  const double step = kOutermostKnot / static_cast<double>(count);
  std::vector<double> knots{0};
  for (int64_t j = 1; j < count; ++j) {
    const double shift = draws.const_data_ptr<double>()[j] / 2 - 0.25;
    knots.push_back(step * (static_cast<double>(j) + shift));
  }
  return knots;
}

/// Weights of the units relu(direction * u - knot) with which their sum is
/// curve - curve(0) at each knot, and level behind the last.
std::vector<double> kinks(const std::function<double(double)>& curve,
                          const std::vector<double>& knots, double direction) {
  std::vector<double> weights;
  double slope = 0;
  for (size_t j = 0; j < knots.size(); ++j) {
    double next = 0;
    if (j + 1 < knots.size()) {
      next = (curve(direction * knots[j + 1]) - curve(direction * knots[j])) /
             (knots[j + 1] - knots[j]);
    }
    weights.push_back(next - slope);
    slope = next;
  }
  return weights;
}

void fit(const PsiParameters& psi, const Curve& curve) {
  const int64_t channels = psi.output_weight.size(0),
                hidden = psi.output_weight.size(1),
                trunks = psi.hidden_weight.size(0);
  std::vector<double> weight, bias, output, output_bias;
  const std::pair<int64_t, double> sides[] = {{hidden - hidden / 2, 1.0},
                                              {hidden / 2, -1.0}};
  std::vector<std::vector<double>> knots;  // trunk by trunk, right and left
  for (int64_t trunk = 0; trunk < trunks; ++trunk) {
    for (const auto& [count, direction] : sides) {
      knots.push_back(count > 0 ? draw_knots(count) : std::vector<double>{});
      for (const double knot : knots.back()) {
        weight.push_back(direction);
        bias.push_back(-knot);
      }
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    const auto own = [&](double u) { return curve(c, u); };
    for (size_t side = 0; side < 2; ++side) {
      const size_t trunk = trunks == 1 ? 0 : static_cast<size_t>(c);
      const auto part = kinks(own, knots[2 * trunk + side], sides[side].second);
      output.insert(output.end(), part.begin(), part.end());
    }
    output_bias.push_back(own(0));
  }
  const auto set = [](at::Tensor tensor, const std::vector<double>& numbers) {
    tensor.copy_(at::tensor(numbers).view(tensor.sizes()));
  };
  set(psi.hidden_weight, weight);
  set(psi.hidden_bias, bias);
  set(psi.output_weight, output);
  set(psi.output_bias, output_bias);
}

Curve tents(int64_t channels) {
  const double step = 2 * kOutermostTent /
                      static_cast<double>(std::max<int64_t>(channels, 2) - 1);
  return [=](int64_t channel, double u) {
    const double inside = std::clamp(u, -kOutermostTent, kOutermostTent);
    const double top = -kOutermostTent + step * static_cast<double>(channel);
    return std::max(0.0, 1 - std::abs(inside - top) / step);
  };
}

double exponential(int64_t channel, double u) {
  const double rate = 0.5 * static_cast<double>(channel / 2 + 1);
  return std::min(std::exp(channel % 2 == 0 ? -rate * u : rate * u), kHighest);
}

}  // namespace

void start_psi(const std::string& start, const PsiParameters& psi) {
  const c10::NoGradGuard no_grad;
  if (start == "torch") {
    start_as_torch(psi);
  } else if (start == "tents") {
    fit(psi, tents(psi.output_weight.size(0)));
  } else {
    fit(psi, exponential);
  }
}

}  // namespace luna::nn
