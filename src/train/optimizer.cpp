#include "luna/train/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "ops/adam_step.h"

namespace luna::train {
namespace {

/// Torch's kernels give a tensor's every 65,536 numbers to one block, of which
/// a small model has too few to fill a GPU: they get smaller pieces.
constexpr int64_t kPiece = 8192;

/// Part of the names that MultiHeadAttention gives to a mechanism's weights.
constexpr const char* kFeatureMap = ".feature_map.";

std::vector<at::Tensor> in_pieces(const std::vector<at::Tensor>& tensors) {
  if (!tensors.front().is_cuda()) return tensors;
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.view({-1});
    for (const at::Tensor& piece : flat.split(kPiece)) pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace

Optimizer::Optimizer(const OptimizerConfig& config,
                     const NamedTensors& parameters)
    : config_(config) {
  TORCH_CHECK_VALUE(!parameters.empty(),
                    "Optimizer: expected at least one parameter, got none");
  const bool is_apollo = config.name == "apollo";
  TORCH_CHECK_VALUE(
      config.name == "adam" || config.name == "adamw" || is_apollo,
      "Optimizer: name: expected adam, adamw or apollo, got ", config.name);
  TORCH_CHECK_VALUE(!is_apollo || config.sigma > 0,
                    "Optimizer: sigma: expected more than 0, got ",
                    config.sigma);
  for (const auto& [name, parameter] : parameters) {
    names_.push_back(name);
    parameters_.push_back(parameter);
    first_.push_back(at::zeros_like(parameter));
    second_.push_back(at::zeros_like(parameter));
    if (is_apollo) direction_.push_back(at::zeros_like(parameter));
    const bool apart = config.feature_map_lr != 1 &&
                       name.find(kFeatureMap) != std::string::npos;
    (apart ? feature_maps_ : others_).push_back(names_.size() - 1);
  }
  updates_ = at::zeros({}, parameters_.front().options().dtype(at::kFloat));
}

void Optimizer::drop_gradients() {
  for (const at::Tensor& parameter : parameters_) {
    parameter.mutable_grad() = at::Tensor();
  }
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter);
    gradients.push_back(gradient);
  }
  return gradients;
}

at::Tensor Optimizer::gradient_norm() const {
  const std::vector<at::Tensor> all = gradients();
  if (ops::are_few(all)) return ops::norm_of_few(all);
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(in_pieces(all))));
}

void Optimizer::step(const at::Tensor& lr, const Verdict& verdict) {
  const c10::NoGradGuard no_grad;
  updates_.add_(verdict.taken);
  const std::vector<at::Tensor> gradients = this->gradients();
  if (config_.clip_each > 0) {
    for (const at::Tensor& gradient : gradients) {
      const at::Tensor norm = at::linalg_vector_norm(gradient) / verdict.scale;
      gradient.mul_((config_.clip_each / norm).clamp_max(1));
    }
  }
  if (!others_.empty()) update(others_, lr, gradients, verdict);
  if (feature_maps_.empty()) return;
  update(feature_maps_, lr.mul(config_.feature_map_lr), gradients, verdict);
}

void Optimizer::update(const std::vector<size_t>& which, const at::Tensor& lr,
                       const std::vector<at::Tensor>& gradients,
                       const Verdict& verdict) {
  if (config_.name == "apollo") {
    for (const size_t i : which) apollo(i, lr, gradients[i], verdict);
    return;
  }
  const auto whole = [&](const std::vector<at::Tensor>& all) {
    std::vector<at::Tensor> some;
    for (const size_t i : which) some.push_back(all[i]);
    return some;
  };
  if (ops::are_few(whole(parameters_)) && ops::are_few(whole(gradients))) {
    ops::adam_step_of_few(whole(parameters_), whole(gradients), whole(first_),
                          whole(second_),
                          {updates_, lr, verdict.scale, verdict.skip},
                          {.beta1 = config_.beta1,
                           .beta2 = config_.beta2,
                           .eps = config_.eps,
                           .weight_decay = config_.weight_decay,
                           .decoupled = config_.name == "adamw"});
    return;
  }
  const auto chosen = [&](const std::vector<at::Tensor>& all) {
    return in_pieces(whole(all));
  };
  const std::vector<at::Tensor> first = chosen(first_);
  const std::vector<at::Tensor> updates(first.size(), updates_);
  const auto fused = [&](auto&& update) {
    update(chosen(parameters_), chosen(gradients), first, chosen(second_),
           at::TensorList{}, updates, lr, config_.beta1, config_.beta2,
           config_.weight_decay, config_.eps, /*amsgrad=*/false,
           /*maximize=*/false, verdict.scale, verdict.skip);
  };
  if (config_.name == "adamw") {
    fused([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    fused([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  }
}

void Optimizer::apollo(size_t i, const at::Tensor& lr,
                       const at::Tensor& gradient, const Verdict& verdict) {
  const auto& p = parameters_[i];
  const auto a = (1 - config_.beta1) / (1 - at::pow(config_.beta1, updates_));
  const auto g = gradient / verdict.scale + config_.weight_decay * p;
  const auto delta = g - first_[i];
  const auto m = first_[i] + a * delta;
  const auto norm =
      at::linalg_vector_norm(direction_[i], 4) + config_.eps / config_.sigma;
  const auto v = direction_[i] / norm, v2 = v * v;
  const auto b = second_[i] +
                 (-a * (delta * v).sum() / norm - (second_[i] * v2).sum()) * v2;
  const auto d = m / b.abs().clamp_min(config_.sigma);
  // A step that is skipped may hold what is no number.
  const auto skip = verdict.skip.gt(0);
  const auto put = [&](const at::Tensor& to, const at::Tensor& value) {
    to.copy_(at::where(skip, to, value));
  };
  put(first_[i], m);
  put(second_[i], b);
  put(direction_[i], d);
  put(p, p - lr * d);
}

NamedTensors Optimizer::state() const {
  NamedTensors tensors;
  for (size_t i = 0; i < names_.size(); ++i) {
    tensors.emplace_back("first_moment." + names_[i], first_[i]);
    tensors.emplace_back("second_moment." + names_[i], second_[i]);
    if (!direction_.empty()) {
      tensors.emplace_back("direction." + names_[i], direction_[i]);
    }
  }
  tensors.emplace_back("updates", updates_);
  return tensors;
}

}  // namespace luna::train
