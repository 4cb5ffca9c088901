#include "models/small_translator.h"

#include <ATen/ATen.h>
#include <luna/nn/attention_registry.h>

#include <algorithm>

namespace luna::testing {

using models::ModelConfig;
using models::Translator;

ModelConfig small_translator(const std::string& attention,
                             const std::string& norm) {
  return {.attention = attention,
          .layers = 2,
          .width = 12,
          .ffn = 10,
          .heads = 3,
          .memory_length = 4,
          .norm = norm,
          .positions = "sinusoidal",
          .activation = "relu",
          .dropout = 0,
          .init = "xavier"};
}

ModelConfig TranslatorKind::config() const {
  ModelConfig config = small_translator(attention, norm);
  config.contextual_memory = variant != "noncontextual";
  if (variant == "untied") config.attention_options["tied"] = false;
  if (variant == "elu") config.attention_options["activation"] = "elu";
  if (variant == "source") config.source_attention = "softmax";
  const bool gate = variant == "gate";
  if (gate || variant == "unit") config.attention_options["unit"] = true;
  if (gate) config.attention_options["gate"] = true;
  return config;
}

void PrintTo(const TranslatorKind& kind, std::ostream* out) {
  *out << kind.attention << "_" << kind.norm;
  if (!kind.variant.empty()) *out << "_" << kind.variant;
}

std::vector<TranslatorKind> translator_kinds() {
  std::vector<TranslatorKind> all;
  for (const auto& info : nn::attentions()) {
    if (!info.traits.causal || !info.traits.cross) continue;
    for (const char* norm : {"pre", "post"}) all.push_back({info.name, norm});
  }
  for (const char* norm : {"pre", "post"}) {
    all.push_back({"nested", norm, "noncontextual"});
    all.push_back({"nested", norm, "untied"});
    all.push_back({"nested", norm, "elu"});
    all.push_back({"universal", norm, "source"});
    all.push_back({"rff", norm, "unit"});
    all.push_back({"rff", norm, "gate"});
  }
  return all;
}

std::shared_ptr<Translator> make_translator(const ModelConfig& config) {
  at::manual_seed(3);
  auto model = std::make_shared<Translator>(config, kSmallVocabulary);
  {
    // Norms and biases start at 1 and 0, which would hide some mistakes.
    const at::NoGradGuard no_grad;
    for (auto& p : model->parameters()) {
      if (p.dim() == 1) p.add_(at::randn_like(p), 0.2);
    }
  }
  model->to(at::kDouble);
  model->eval();
  return model;
}

data::Sequences random_sequences(const std::vector<int64_t>& lengths,
                                 uint64_t seed) {
  at::manual_seed(seed);
  const auto n = *std::ranges::max_element(lengths);
  data::Sequences s{at::randint(3, kSmallVocabulary, {std::ssize(lengths), n}),
                    at::tensor(lengths)};
  s.full = *std::ranges::min_element(lengths) == n;
  return s;
}

}  // namespace luna::testing
