#include "models/plain_model.h"

#include <ATen/ATen.h>
#include <luna/nn/attention_layer.h>

#include <cmath>

namespace luna::models::testing {
namespace {

class Plain {
 public:
  explicit Plain(const torch::nn::Module& model)
      : weights_(model.named_parameters()), modules_(model.named_modules()) {}

  at::Tensor operator[](const std::string& name) const {
    return weights_[name];
  }
  bool has(const std::string& name) const { return weights_.contains(name); }

  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    const auto y = at::matmul(x, weights_[name + ".weight"].t());
    return has(name + ".bias") ? y + weights_[name + ".bias"] : y;
  }

  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    const auto centred = x - x.mean(-1, true);
    const auto variance = centred.square().mean(-1, true);
    return centred / (variance + 1e-5).sqrt() * weights_[name + ".weight"] +
           weights_[name + ".bias"];
  }

  nn::AttentionLayer& attention(const std::string& name) const {
    return dynamic_cast<nn::AttentionLayer&>(*modules_[name]);
  }

 private:
  torch::OrderedDict<std::string, at::Tensor> weights_;
  torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>> modules_;
};

at::Tensor activate(const at::Tensor& x, const std::string& name) {
  if (name == "relu") return x * x.gt(0);
  return x * 0.5 * (1 + at::erf(x / std::sqrt(2.0)));
}

/// sqrt(D) x + the sinusoid of each position, number by number.
at::Tensor with_sinusoid(const at::Tensor& x) {
  const auto width = x.size(-1), half = width / 2;
  auto waves = at::zeros({x.size(-2), width}, x.options());
  for (int64_t t = 0; t < x.size(-2); ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          t * std::exp(-i * std::log(10000.0) / static_cast<double>(half - 1));
      waves[t][i] = std::sin(angle);
      waves[t][half + i] = std::cos(angle);
    }
  }
  return std::sqrt(static_cast<double>(width)) * x + waves;
}

}  // namespace

at::Tensor plain_classifier(const torch::nn::Module& model,
                            const ModelConfig& config, const at::Tensor& ids) {
  at::NoGradGuard no_grad;
  const Plain plain(model);
  const auto n = ids.size(1);
  const bool pre = config.norm == "pre";

  auto x = plain["embedding.tokens.weight"].index({ids});
  if (config.positions == "learned") {
    x = x + plain["embedding.positions.weight"].slice(0, 0, n);
  }
  if (config.positions == "sinusoidal") x = with_sinusoid(x);
  if (config.embedding_norm) x = plain.norm("embedding.norm", x);
  at::Tensor p;
  if (plain.has("memory")) {
    // A sequence shorter than the memory uses as many of its rows.
    p = plain["memory"].slice(0, 0, n).unsqueeze(0);
    if (config.positions == "sinusoidal") p = with_sinusoid(p);
    if (config.embedding_norm) p = plain.norm("memory_norm", p);
  }

  for (int64_t i = 0; i < config.layers; ++i) {
    const auto in = "layers." + std::to_string(i) + ".";
    const auto ffn = [&](const at::Tensor& y) {
      return plain.linear(
          in + "ffn.down",
          activate(plain.linear(in + "ffn.up", y), config.activation));
    };
    nn::LayerInput input;
    if (p.defined()) input.memory = pre ? plain.norm(in + "memory_norm", p) : p;
    const auto y =
        plain.attention(in + "attention")
            .forward(pre ? plain.norm(in + "attention_norm", x) : x, input);
    if (pre) {
      x = x + y.x;
      x = x + ffn(plain.norm(in + "ffn_norm", x));
      if (p.defined()) p = p + *y.memory;
    } else {
      x = plain.norm(in + "attention_norm", x + y.x);
      x = plain.norm(in + "ffn_norm", x + ffn(x));
      if (p.defined()) p = plain.norm(in + "memory_norm", p + *y.memory);
    }
  }

  at::Tensor pooled;
  if (config.pooling == "memory") {
    pooled = (pre ? plain.norm("last_memory_norm", p) : p).mean(1);
  } else {
    if (pre) x = plain.norm("norm", x);
    pooled = config.pooling == "cls" ? x.select(1, 0) : x.mean(1);
  }
  if (config.head == "mlp") {
    pooled = plain.linear("head.hidden", pooled).clamp_min(0);
  }
  return plain.linear("head.out", pooled);
}

}  // namespace luna::models::testing
