#pragma once

#include <luna/models/encoder_layer.h>
#include <torch/nn/modules/conv.h>

#include <vector>

namespace luna::models {

struct VitConfig {
  int64_t image_size = 0;  ///< square, of the pictures it was trained with
  int64_t patch_size = 0;
  int64_t channels = 3;
  int64_t layers = 0;
  EncoderLayerOptions layer{};  ///< pre-norm
  bool pooler = false;          ///< tanh(Linear) of [CLS]
  int64_t classes = 0;          ///< of a classifier over [CLS]; 0: none
};

struct VitOutput {
  /// [B,1+patches,D]: of the embedding, then of each layer, before `norm`.
  std::vector<at::Tensor> hidden{};
  at::Tensor last;    ///< norm of the last one
  at::Tensor pooled;  ///< [B,D], if there is a pooler
  at::Tensor logits;  ///< [B,classes], if there is a classifier
};

/// Patches to vectors, [CLS] in front, positions added. Names: cls [1,1,D],
/// positions [1,1+patches,D], patches.* (a convolution)
class VitEmbeddingImpl : public torch::nn::Module {
 public:
  explicit VitEmbeddingImpl(const VitConfig& config);

  at::Tensor forward(const at::Tensor& pixels);

  at::Tensor cls{}, positions{};
  torch::nn::Conv2d patches{nullptr};

 private:
  /// The positions of so many patches; of another size than was learnt, by
  /// bicubic interpolation, as transformers does it.
  at::Tensor positions_of(int64_t rows, int64_t columns);

  int64_t patch_size_;
  double dropout_;
};
TORCH_MODULE(VitEmbedding);

/// ViT over any mechanism of the registry without a memory. Names:
/// embedding.{cls,positions,patches.*}, layers.N.* (EncoderLayer), norm.*,
/// pooler.*, head.* (classifier)
class VitImpl : public torch::nn::Module {
 public:
  explicit VitImpl(const VitConfig& config);

  /// pixels [B,channels,height,width], sides that hold a patch or more; what
  /// is left over at the right and the bottom is not seen.
  VitOutput forward(const at::Tensor& pixels);

  const VitConfig& config() const { return config_; }

  VitEmbedding embedding{nullptr};
  std::vector<EncoderLayer> layers{};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear pooler{nullptr}, head{nullptr};

 private:
  VitConfig config_;
};
TORCH_MODULE(Vit);

}  // namespace luna::models
