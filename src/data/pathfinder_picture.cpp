#include "data/pathfinder_picture.h"

#include <algorithm>
#include <cmath>

namespace luna::data {

namespace {

/// image = max(image, contrast * source) with source around `centre`.
void lighten(std::vector<double>& image, int64_t window,
             const SquareImage& source, Point centre, double contrast) {
  const int64_t reach = source.size / 2;
  for (int64_t y = 0; y < source.size; ++y) {
    const int64_t row = y + centre.y - reach;
    if (row < 0 || row >= window) continue;
    for (int64_t x = 0; x < source.size; ++x) {
      const int64_t column = x + centre.x - reach;
      if (column < 0 || column >= window) continue;
      double& pixel = image[row * window + column];
      // In float, as the original: ties of the last rounding depend on it.
      const auto light = static_cast<float>(source.at(y, x) / 255.0 * contrast);
      pixel = std::max<double>(pixel, light);
    }
  }
}

void lighten(std::vector<double>& image, int64_t window, const Contour& contour,
             double contrast) {
  for (const PlacedPaddle& placed : contour.paddles) {
    lighten(image, window, placed.paddle->line, placed.drawn_from, contrast);
  }
}

}  // namespace

void paint(const PathfinderOptions& options, const Scene& scene,
           std::span<uint8_t> pixels) {
  const int64_t window = options.window;
  std::vector<double> image(window * window);
  for (const Contour& contour : scene.targets) {
    lighten(image, window, contour, options.target_contrast);
  }
  for (const Contour& contour : scene.distractors) {
    lighten(image, window, contour, options.distractor_contrast);
  }
  for (const Point marker : scene.markers) {
    const SquareImage drawn = draw_marker(options, marker);
    for (size_t i = 0; i < image.size(); ++i) {
      image[i] = std::max(image[i], drawn.pixels[i] / 255.0);
    }
  }
  const double scale = 255 / *std::max_element(image.begin(), image.end());
  for (size_t i = 0; i < image.size(); ++i) {
    pixels[i] = static_cast<uint8_t>(image[i] * scale + 0.5);
  }
}

PathfinderPainter::PathfinderPainter(const PathfinderOptions& options,
                                     const std::vector<PaddleKit>& kits)
    : options_(options) {
  for (const PaddleKit& kit : kits) placers_.emplace_back(options, kit);
}

Scene PathfinderPainter::draw(uint64_t seed, uint64_t index,
                              std::span<uint8_t> pixels) {
  Random random(seed, index);
  ContourPlacer& placer =
      placers_[random.below(static_cast<uint32_t>(placers_.size()))];
  Scene scene = placer.place(random);
  paint(options_, scene, pixels);
  return scene;
}

std::vector<PaddleKit> make_paddle_kits(const PathfinderOptions& options) {
  std::vector<PaddleKit> kits;
  for (int64_t margin = options.least_margin; margin <= options.greatest_margin;
       ++margin) {
    kits.emplace_back(options, margin);
  }
  return kits;
}

}  // namespace luna::data
