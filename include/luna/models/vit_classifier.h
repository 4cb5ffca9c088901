#pragma once

#include <luna/data/image_processor.h>
#include <luna/models/layered_model.h>
#include <luna/models/vit.h>

namespace luna::models {

/// A ViT with a classifier as a model of a task of pictures, which are as large
/// as its image_size. Names: those of Vit.
class VitClassifier : public LayeredModel {
 public:
  /// Of the processor's steps those that change a picture's values, not its
  /// size.
  explicit VitClassifier(Vit vit,
                         const data::ImageProcessorOptions& processor = {});

  at::Tensor forward(const data::Batch& batch) override;
  data::BatchOptions batch_options() const override { return {}; }
  void train(bool on = true) override;
  const std::vector<EncoderLayer>& layers() const override {
    return vit_->layers;
  }
  Attended attended(const data::Batch& batch) override;

  /// What Vit reads of a batch, blended as that says.
  at::Tensor pixels(const data::Batch& batch);
  const Vit& vit() const { return vit_; }

 private:
  Vit vit_;
  data::ImageProcessorOptions processor_;
  at::Tensor scale_, shift_;  ///< [3,1,1], where the last batch was
};

/// The ViT that a config with `patch` asks for.
VitConfig vit_config(const ModelConfig& config, const data::TaskInfo& task);

}  // namespace luna::models
