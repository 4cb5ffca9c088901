#include "luna/report/learned_psi.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <luna/io/safetensors.h>
#include <luna/ops/feature_map.h>

#include <algorithm>

namespace luna::report {
namespace {

constexpr const char* kFirst = ".hidden_weight";

/// psi_c(u) for all u, [channels, u]: the feature map of a projection by 1.
at::Tensor psi_at(const io::Safetensors& weights, const std::string& prefix,
                  const at::Tensor& u, bool nonneg) {
  const auto parameter = [&](const char* name) {
    return weights.tensor(prefix + name).to(at::kDouble);
  };
  ops::FeatureMapParameters parameters;
  parameters.projection = at::ones({1, 1}, u.options());
  parameters.projection_bias = at::zeros({1}, u.options());
  parameters.hidden_weight = parameter(kFirst);
  parameters.hidden_bias = parameter(".hidden_bias");
  parameters.output_weight = parameter(".output_weight");
  parameters.output_bias = parameter(".output_bias");
  ops::FeatureMapOptions options;
  options.nonneg = nonneg;
  return ops::feature_map(u.unsqueeze(-1), parameters, options).t();
}

std::vector<double> numbers(const at::Tensor& x) {
  return {x.const_data_ptr<double>(), x.const_data_ptr<double>() + x.numel()};
}

std::vector<std::vector<double>> rows(const at::Tensor& values) {
  const auto table = values.contiguous();
  std::vector<std::vector<double>> all;
  for (std::int64_t c = 0; c < table.size(0); ++c) {
    all.push_back(numbers(table[c]));
  }
  return all;
}

double knots_inside(const io::Safetensors& weights, const std::string& prefix,
                    const at::Tensor& u) {
  const auto knots = -weights.tensor(prefix + ".hidden_bias").to(at::kDouble) /
                     weights.tensor(prefix + kFirst).to(at::kDouble);
  const auto inside = knots.ge(u[0]).logical_and(knots.le(u[-1]));
  return inside.to(at::kDouble).mean().item<double>();
}

/// "layers.0.attention.feature_map" is the attention of layer 0.
std::string layer_name(std::string prefix) {
  constexpr std::string_view kModule = ".feature_map";
  if (prefix.ends_with(kModule)) prefix.resize(prefix.size() - kModule.size());
  return prefix;
}

}  // namespace

std::vector<double> normal_u() {
  const auto levels = at::arange(train::kQuantiles, at::kDouble).add(0.5);
  return numbers(at::special_ndtri(levels / train::kQuantiles));
}

std::vector<double> even_u() {
  return numbers(at::linspace(-4, 4, 161, at::kDouble));
}

std::vector<LearnedPsi> learned_psi(const std::string& model,
                                    const std::string& start, bool nonneg,
                                    const std::vector<train::FeatureUse>& uses,
                                    const std::vector<double>& assumed) {
  const at::NoGradGuard no_grad;
  const auto weights = io::Safetensors::open(model);
  std::optional<io::Safetensors> before;
  if (!start.empty()) before = io::Safetensors::open(start);
  std::vector<LearnedPsi> layers;
  for (const io::TensorEntry& entry : weights.entries()) {
    if (!entry.name.ends_with(kFirst)) continue;
    const std::string prefix =
        entry.name.substr(0, entry.name.size() - std::string(kFirst).size());
    LearnedPsi layer;
    layer.layer = layer_name(prefix);
    layer.u = assumed;
    for (const train::FeatureUse& use : uses) {
      if (use.map != prefix || std::ssize(use.u) != train::kQuantiles) continue;
      layer.use = use;
      layer.u = use.u;
    }
    const auto u = at::tensor(layer.u, at::kDouble);
    const auto now = psi_at(weights, prefix, u, nonneg);
    layer.now = rows(now);
    const auto alive = now.ne(0);
    for (std::int64_t c = 0; c < now.size(0); ++c) {
      layer.live.push_back(alive[c].any().item<bool>());
    }
    layer.live_share = alive.to(at::kDouble).mean().item<double>();
    layer.knots_inside = knots_inside(weights, prefix, u);
    if (before && before->contains(entry.name)) {
      const auto was = psi_at(*before, prefix, u, nonneg);
      layer.start = rows(was);
      const double size = was.norm().item<double>();
      if (size > 0) layer.change = (now - was).norm().item<double>() / size;
    }
    layers.push_back(std::move(layer));
  }
  std::sort(layers.begin(), layers.end(),
            [](const LearnedPsi& a, const LearnedPsi& b) {
              return std::pair(a.layer.size(), a.layer) <
                     std::pair(b.layer.size(), b.layer);
            });
  return layers;
}

}  // namespace luna::report
