#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <luna/models/vit_classifier.h>

#include <utility>

#include "data/blend.h"
#include "models/attention_options.h"

namespace luna::models {

VitClassifier::VitClassifier(Vit vit,
                             const data::ImageProcessorOptions& processor)
    : vit_(std::move(vit)), processor_(processor) {
  TORCH_CHECK_VALUE(vit_->config().classes > 0,
                    "VitClassifier: expected a Vit with classes, got none");
  TORCH_CHECK_VALUE(vit_->config().channels == 3,
                    "VitClassifier: expected a Vit of 3 channels, got ",
                    vit_->config().channels);
  for (const auto& child : vit_->named_children()) {
    register_module(child.key(), child.value());
  }
}

void VitClassifier::train(bool on) {
  Model::train(on);
  vit_->train(on);  // only its children are this model's own
}

at::Tensor VitClassifier::pixels(const data::Batch& batch) {
  const at::Tensor& ids = batch.first.ids;
  const int64_t side = vit_->config().image_size;
  TORCH_CHECK_VALUE(ids.size(1) == 3 * side * side,
                    "VitClassifier: expected pictures of 3 x ", side, " x ",
                    side, " values, got ", ids.size(1));
  if (!scale_.defined() || scale_.device() != ids.device()) {
    const double factor = processor_.rescale_factor.value_or(1);
    std::array<double, 3> scale{factor, factor, factor}, shift{};
    for (size_t c = 0; c < 3 && processor_.normalize; ++c) {
      scale[c] = factor / processor_.std[c];
      shift[c] = -processor_.mean[c] / processor_.std[c];
    }
    const auto by_channel = [&](const std::array<double, 3>& values) {
      return at::tensor(at::ArrayRef<double>(values.data(), 3), at::kFloat)
          .view({3, 1, 1})
          .to(ids.device());
    };
    scale_ = by_channel(scale);
    shift_ = by_channel(shift);
  }
  const at::Tensor x =
      ids.view({ids.size(0), 3, side, side}).to(at::kFloat) * scale_ + shift_;
  return batch.blends.defined() ? data::blend_pictures(x, batch.blends) : x;
}

at::Tensor VitClassifier::forward(const data::Batch& batch) {
  return vit_(pixels(batch)).logits;
}

LayeredModel::Attended VitClassifier::attended(const data::Batch& batch) {
  const VitOutput output = vit_(pixels(batch));
  Attended attended{.logits = output.logits};
  for (size_t i = 0; i < vit_->layers.size(); ++i) {
    attended.x.push_back(vit_->layers[i]->attention_norm(output.hidden[i]));
  }
  return attended;
}

VitConfig vit_config(const ModelConfig& config, const data::TaskInfo& task) {
  TORCH_CHECK_VALUE(task.channels == 3 && task.height == task.width,
                    "model.patch: expected a task of square pictures in "
                    "colour, got ",
                    task.task);
  TORCH_CHECK_VALUE(task.height % config.patch == 0,
                    "model.patch: expected a divisor of the pictures' ",
                    task.height, " pixels, got ", config.patch);
  VitConfig vit;
  vit.image_size = task.height;
  vit.patch_size = config.patch;
  vit.channels = task.channels;
  vit.layers = config.layers;
  vit.layer = EncoderLayerOptions(config, attention_options(config));
  vit.layer.norm_eps = 1e-12;  // as transformers has it
  vit.classes = task.classes;
  return vit;
}

}  // namespace luna::models
