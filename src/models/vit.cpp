#include <ATen/ATen.h>
#include <luna/models/vit.h>

#include "models/layer_stack.h"

namespace luna::models {

VitEmbeddingImpl::VitEmbeddingImpl(const VitConfig& config)
    : patch_size_(config.patch_size), dropout_(config.layer.dropout) {
  const auto width = config.layer.width;
  const auto side = config.image_size / config.patch_size;
  cls = register_parameter("cls", at::empty({1, 1, width}).normal_(0, 0.02));
  positions = register_parameter(
      "positions", at::empty({1, 1 + side * side, width}).normal_(0, 0.02));
  patches = register_module(
      "patches",
      torch::nn::Conv2d(
          torch::nn::Conv2dOptions(config.channels, width, config.patch_size)
              .stride(config.patch_size)));
}

at::Tensor VitEmbeddingImpl::positions_of(int64_t rows, int64_t columns) {
  const auto learnt = positions.size(1) - 1;
  if (rows == columns && rows * columns == learnt) return positions;
  const auto side =
      static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(learnt))));
  const auto grid = positions.narrow(1, 1, learnt)
                        .reshape({1, side, side, -1})
                        .permute({0, 3, 1, 2});
  const auto resized =
      at::upsample_bicubic2d(grid, {rows, columns}, /*align_corners=*/false);
  return at::cat({positions.narrow(1, 0, 1), resized.flatten(2).mT()}, 1);
}

at::Tensor VitEmbeddingImpl::forward(const at::Tensor& pixels) {
  TORCH_CHECK_VALUE(
      pixels.dim() == 4 && pixels.size(1) == patches->options.in_channels(),
      "Vit: expected pixels [batch, ", patches->options.in_channels(),
      ", height, width], got ", pixels.sizes());
  TORCH_CHECK_VALUE(
      pixels.size(2) >= patch_size_ && pixels.size(3) >= patch_size_,
      "Vit: expected pictures of at least ", patch_size_, " x ", patch_size_,
      " pixels, got ", pixels.size(2), " x ", pixels.size(3));
  const auto grid = patches(pixels);
  const auto x =
      at::cat({cls.expand({pixels.size(0), -1, -1}), grid.flatten(2).mT()}, 1) +
      positions_of(grid.size(2), grid.size(3));
  return at::dropout(x, dropout_, is_training());
}

VitImpl::VitImpl(const VitConfig& config) : config_(config) {
  TORCH_CHECK_VALUE(
      config.patch_size > 0 && config.image_size >= config.patch_size &&
          config.channels > 0,
      "Vit: expected channels, and pictures of at least a patch, got ",
      config.channels, " channels, image_size ", config.image_size,
      " and patch_size ", config.patch_size);
  const auto width = config.layer.width;
  embedding = register_module("embedding", VitEmbedding(config));
  layers = make_layers("Vit", config.layers, config.layer);
  register_module("layers", as_list(layers));
  norm = register_module(
      "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(
                  config.layer.norm_eps)));
  if (config.pooler) {
    pooler = register_module("pooler", torch::nn::Linear(width, width));
  }
  if (config.classes > 0) {
    head = register_module("head", torch::nn::Linear(width, config.classes));
  }
}

VitOutput VitImpl::forward(const at::Tensor& pixels) {
  VitOutput output;
  output.hidden = run_layers(layers, embedding(pixels), {});
  output.last = norm(output.hidden.back());
  const auto first = output.last.select(1, 0);
  if (pooler) output.pooled = at::tanh(pooler(first));
  if (head) output.logits = head(first);
  return output;
}

}  // namespace luna::models
