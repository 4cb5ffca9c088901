#include <ATen/ATen.h>
#include <luna/data/dataset.h>
#include <luna/models/embedding.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "models/fused.h"
#include "nn/heads.h"
#include "ops/embed.h"
#include "ops/lookup.h"

namespace luna::models {
namespace {

/// [CLS] and padding, after the data's ids.
const int64_t kSpecials = data::embedding_rows({});

}  // namespace

at::Tensor sinusoid(int64_t length, int64_t width,
                    const at::TensorOptions& options) {
  TORCH_CHECK_VALUE(width >= 4 && width % 2 == 0,
                    "model.width: expected an even number from 4 for "
                    "sinusoidal positions, got ",
                    width);
  const auto half = width / 2;
  // In float64: a float32 angle of position 4,000 is off in the fourth digit.
  const auto exact = options.dtype(at::kDouble);
  const double step = std::log(1e4) / static_cast<double>(half - 1);
  const auto angles = at::arange(length, exact).unsqueeze(1) *
                      at::arange(half, exact).mul(-step).exp();
  return at::cat({angles.sin(), angles.cos()}, 1)
      .to(c10::typeMetaToScalarType(options.dtype()));
}

EmbeddingImpl::EmbeddingImpl(const ModelConfig& config, int64_t rows,
                             int64_t max_positions)
    : rows_(rows),
      line_(config.embedding == "line"),
      sinusoidal_(config.positions == "sinusoidal"),
      dropout_(config.dropout) {
  tokens = register_module(
      "tokens",
      torch::nn::Embedding(line_ ? 2 + kSpecials : rows, config.width));
  if (config.positions == "learned") {
    positions = register_module(
        "positions", torch::nn::Embedding(max_positions, config.width));
  }
  if (config.embedding_norm) {
    norm = register_module(
        "norm",
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
  }
}

at::Tensor EmbeddingImpl::table() const {
  const auto& weight = tokens->weight;
  if (!line_) return weight;
  const auto t = at::linspace(0, 1, rows_ - kSpecials, weight.options());
  return at::cat({at::lerp(weight[0], weight[1], t.unsqueeze(1)),
                  weight.narrow(0, 2, kSpecials)});
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids,
                                  const std::optional<at::Tensor>& mask) {
  TORCH_CHECK_VALUE(ids.dim() == 2, "Embedding: expected ids [batch, length],",
                    " got ", ids.sizes());
  const auto length = ids.size(1);
  const auto vectors = table();
  if (positions) {
    TORCH_CHECK_VALUE(length <= positions->weight.size(0),
                      "Embedding: expected at most ", positions->weight.size(0),
                      " ids in a sequence (model.max_positions), got ", length);
  }
  const bool fused =
      positions && ops::embed_is_fused(ids, vectors, positions->weight);
  if (fused && !norm) {
    const double p = is_training() ? dropout_ : 0.0;
    return ops::embed(
        ids, vectors, positions->weight,
        {.mask = mask, .dropout_p = p, .seed = nn::draw_seed(ids, p)});
  }
  at::Tensor x;
  if (fused) {
    x = ops::embed(ids, vectors, positions->weight, {});
  } else {
    x = ops::lookup(vectors, ids);
    if (positions) x = x + positions->weight.narrow(0, 0, length);
    x = add_sinusoid(x);
  }
  if (norm) x = normed_rows(x, norm, /*in_product=*/false).second;
  x = at::dropout(x, dropout_, is_training());
  return mask ? x * mask->unsqueeze(-1) : x;
}

at::Tensor EmbeddingImpl::forward_packed(const at::Tensor& ids,
                                         const data::Packing& packed) {
  TORCH_CHECK_VALUE(ids.dim() == 2 && ids.size(0) == 1,
                    "Embedding: expected packed ids [1, tokens], got ",
                    ids.sizes());
  const auto vectors = table();
  const bool fused =
      positions && ops::embed_is_fused(ids, vectors, positions->weight);
  if (fused && !norm) {
    const double p = is_training() ? dropout_ : 0.0;
    return ops::embed(ids, vectors, positions->weight,
                      {.dropout_p = p,
                       .seed = nn::draw_seed(ids, p),
                       .starts = packed.starts});
  }
  at::Tensor x = fused ? ops::embed(ids, vectors, positions->weight,
                                    {.starts = packed.starts})
                       : ops::lookup(vectors, ids);
  if (!fused && (positions || sinusoidal_)) {
    const auto places = ops::places_of(packed.starts, ids.size(1));
    if (positions) x = x + ops::lookup(positions->weight, places);
    if (sinusoidal_) {
      x = x * std::sqrt(static_cast<double>(x.size(2))) +
          sinusoids(packed.longest, x).index_select(0, places);
    }
  }
  if (norm) x = normed_rows(x, norm, /*in_product=*/false).second;
  return at::dropout(x, dropout_, is_training());
}

at::Tensor EmbeddingImpl::add_sinusoid(const at::Tensor& x) {
  if (!sinusoidal_) return x;
  const auto length = x.size(-2);
  return x * std::sqrt(static_cast<double>(x.size(-1))) +
         sinusoids(length, x).narrow(0, 0, length);
}

at::Tensor EmbeddingImpl::sinusoids(int64_t rows, const at::Tensor& x) {
  const auto fits = [&](const at::Tensor& table) {
    return table.size(0) >= rows && table.device() == x.device() &&
           table.scalar_type() == x.scalar_type();
  };
  const auto found = std::ranges::find_if(sinusoids_, fits);
  if (found != sinusoids_.end()) return *found;
  const auto more = std::bit_ceil(static_cast<uint64_t>(rows));
  sinusoids_.push_back(
      sinusoid(static_cast<int64_t>(more), x.size(-1), x.options()));
  return sinusoids_.back();
}

}  // namespace luna::models
