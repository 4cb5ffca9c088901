#include <ATen/ATen.h>
#include <luna/models/vit.h>

#include "models/layer_stack.h"

namespace luna::models {
namespace {

/// [B,patches,D]: the convolution, as transformers has it; on a GPU as one
/// matrix product, whose gradient has the same bits twice.
at::Tensor patch_rows(torch::nn::Conv2d& patches, const at::Tensor& pixels) {
  if (!pixels.is_cuda()) return patches(pixels).flatten(2).mT();
  const auto side = patches->weight.size(2);
  const auto rows = pixels.size(2) / side, columns = pixels.size(3) / side;
  const auto grid = pixels.narrow(2, 0, rows * side)
                        .narrow(3, 0, columns * side)
                        .unflatten(3, {columns, side})
                        .unflatten(2, {rows, side})
                        .permute({0, 2, 4, 1, 3, 5})
                        .flatten(3)
                        .flatten(1, 2);
  return at::linear(grid, patches->weight.flatten(1), patches->bias);
}

}  // namespace

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
  const auto x =
      at::cat(
          {cls.expand({pixels.size(0), -1, -1}), patch_rows(patches, pixels)},
          1) +
      positions_of(pixels.size(2) / patch_size_, pixels.size(3) / patch_size_);
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
