#include <luna/models/parameter_counts.h>

namespace luna::models {
namespace {

int64_t& part_of(const std::string& name, ParameterCounts& counts) {
  const auto has = [&](const char* part) {
    return name.find(part) != std::string::npos;
  };
  if (name.starts_with("embedding.tokens.")) return counts.tokens;
  if (name.starts_with("embedding.positions.")) return counts.positions;
  if (name.starts_with("head.")) return counts.head;
  if (has(".attention.")) return counts.attention;
  if (name == "memory" || has("memory_norm.")) return counts.memory;
  if (has(".ffn.")) return counts.ffn;
  return has("norm.") ? counts.norms : counts.other;
}

}  // namespace

ParameterCounts count_parameters(const torch::nn::Module& model) {
  ParameterCounts counts;
  for (const auto& entry : model.named_parameters()) {
    part_of(entry.key(), counts) += entry.value().numel();
  }
  return counts;
}

}  // namespace luna::models
