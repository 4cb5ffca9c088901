#include "convert/weight_names.h"

#include <c10/util/Exception.h>

#include <cctype>
#include <optional>
#include <span>

namespace luna::convert {
namespace {

/// Modules or parameters; # is a layer's number.
struct Names {
  const char* ours;
  const char* theirs;
};

constexpr Names kBert[] = {
    {"embedding.tokens", "embeddings.word_embeddings"},
    {"embedding.positions", "embeddings.position_embeddings"},
    {"embedding.token_types", "embeddings.token_type_embeddings"},
    {"embedding.norm", "embeddings.LayerNorm"},
    {"layers.#.attention.q_proj", "encoder.layer.#.attention.self.query"},
    {"layers.#.attention.k_proj", "encoder.layer.#.attention.self.key"},
    {"layers.#.attention.v_proj", "encoder.layer.#.attention.self.value"},
    {"layers.#.attention.feature_map",
     "encoder.layer.#.attention.self.feature_map"},
    {"layers.#.attention.out_proj", "encoder.layer.#.attention.output.dense"},
    {"layers.#.attention_norm", "encoder.layer.#.attention.output.LayerNorm"},
    {"layers.#.ffn.up", "encoder.layer.#.intermediate.dense"},
    {"layers.#.ffn.down", "encoder.layer.#.output.dense"},
    {"layers.#.ffn_norm", "encoder.layer.#.output.LayerNorm"},
    {"pooler", "pooler.dense"},
    {"head", "classifier"},
    {"masked_lm.dense", "cls.predictions.transform.dense"},
    {"masked_lm.norm", "cls.predictions.transform.LayerNorm"},
    {"masked_lm.bias", "cls.predictions.bias"},
    {"masked_lm.decoder", "cls.predictions.decoder.weight"},
};

constexpr Names kVit[] = {
    {"embedding.cls", "embeddings.cls_token"},
    {"embedding.positions", "embeddings.position_embeddings"},
    {"embedding.patches", "embeddings.patch_embeddings.projection"},
    {"layers.#.attention.q_proj", "encoder.layer.#.attention.attention.query"},
    {"layers.#.attention.k_proj", "encoder.layer.#.attention.attention.key"},
    {"layers.#.attention.v_proj", "encoder.layer.#.attention.attention.value"},
    {"layers.#.attention.feature_map", "encoder.layer.#.attention.feature_map"},
    {"layers.#.attention.out_proj", "encoder.layer.#.attention.output.dense"},
    {"layers.#.attention_norm", "encoder.layer.#.layernorm_before"},
    {"layers.#.ffn.up", "encoder.layer.#.intermediate.dense"},
    {"layers.#.ffn.down", "encoder.layer.#.output.dense"},
    {"layers.#.ffn_norm", "encoder.layer.#.layernorm_after"},
    {"norm", "layernorm"},
    {"pooler", "pooler.dense"},
    {"head", "classifier"},
};

std::span<const Names> names_of(Family family) {
  if (family == Family::kBert) return kBert;
  return kVit;
}

const char* prefix_of(Family family) {
  return family == Family::kBert ? "bert." : "vit.";
}

struct Match {
  std::string layer{};      ///< its number, if the pattern has one
  std::string_view rest{};  ///< what follows: "" or ".weight"
};

/// `name` as the pattern, alone or with something behind a dot.
std::optional<Match> match(std::string_view pattern, std::string_view name) {
  Match result;
  size_t at = 0;
  for (const char c : pattern) {
    if (c == '#') {
      while (at < name.size() && std::isdigit(name[at])) {
        result.layer += name[at++];
      }
      if (result.layer.empty()) return std::nullopt;
    } else if (at == name.size() || name[at++] != c) {
      return std::nullopt;
    }
  }
  result.rest = name.substr(at);
  if (!result.rest.empty() && result.rest[0] != '.') return std::nullopt;
  return result;
}

std::string replace_end(std::string name, std::string_view end,
                        std::string_view by) {
  if (name.ends_with(end))
    name.replace(name.size() - end.size(), end.size(), by);
  return name;
}

}  // namespace

std::string their_name(Family family, std::string_view ours) {
  for (const Names& names : names_of(family)) {
    const auto found = match(names.ours, ours);
    if (!found) continue;
    std::string theirs = names.theirs;
    if (const auto at = theirs.find('#'); at != std::string::npos) {
      theirs.replace(at, 1, found->layer);
    }
    return theirs.append(found->rest);
  }
  TORCH_INTERNAL_ASSERT(false, "no name in transformers for ", ours);
}

std::string canonical_name(Family family, std::string_view theirs, bool tied) {
  const std::string_view prefix = prefix_of(family);
  if (theirs.starts_with(prefix)) theirs.remove_prefix(prefix.size());
  std::string name(theirs);
  name = replace_end(std::move(name), ".LayerNorm.gamma", ".LayerNorm.weight");
  name = replace_end(std::move(name), ".LayerNorm.beta", ".LayerNorm.bias");
  if (name == "cls.predictions.decoder.bias") return "cls.predictions.bias";
  if (tied && name == "cls.predictions.decoder.weight") {
    return "embeddings.word_embeddings.weight";
  }
  return name;
}

bool is_buffer(std::string_view canonical) {
  return canonical == "embeddings.position_ids" ||
         canonical == "embeddings.token_type_ids";
}

std::string with_prefix(Family family, const std::string& architecture,
                        const std::string& canonical) {
  const bool base = architecture == "BertModel" || architecture == "ViTModel";
  const bool head =
      canonical.starts_with("classifier.") || canonical.starts_with("cls.");
  return base || head ? canonical : prefix_of(family) + canonical;
}

}  // namespace luna::convert
