#pragma once

#include <ATen/core/Tensor.h>
#include <luna/data/pixels.h>

#include <array>
#include <optional>
#include <string>

namespace luna::data {

/// What a preprocessor_config.json says; a step that is not wanted is none.
struct ImageProcessorOptions {
  struct Size {
    int64_t height = 0, width = 0;
    int64_t shortest_edge = 0;  ///< instead of both, unless 0
  };
  std::optional<Size> size{Size{224, 224, 0}};
  Filter resample = Filter::kBilinear;
  std::optional<Size> crop_size{};
  std::optional<double> rescale_factor{1.0 / 255};
  bool normalize = true;
  std::array<double, 3> mean{0.5, 0.5, 0.5}, std{0.5, 0.5, 0.5};
};

/// Pictures to a vision model's input: resize, crop, rescale, normalise, in
/// this order, each as transformers' image processor with Pillow does it.
class ImageProcessor {
 public:
  explicit ImageProcessor(const ImageProcessorOptions& options)
      : options_(options) {}
  /// A preprocessor_config.json, or a folder with one. Throws ValueError that
  /// names file and field.
  static ImageProcessor open(const std::string& path);

  /// RGB pixels -> float32 [3,height,width]
  at::Tensor process(const Pixels& picture) const;
  /// Of a PNG or JPEG file.
  at::Tensor process_file(const std::string& path) const;

  const ImageProcessorOptions& options() const { return options_; }

 private:
  ImageProcessorOptions options_;
};

}  // namespace luna::data
