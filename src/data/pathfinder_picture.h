#pragma once

#include "data/pathfinder_contours.h"

namespace luna::data {

/// The pixels of a scene, row by row: the brightest of all that is there,
/// scaled so that the brightest pixel is 255.
void paint(const PathfinderOptions& options, const Scene& scene,
           std::span<uint8_t> pixels);

/// Draws pictures one by one. Not for several threads at once.
class PathfinderPainter {
 public:
  PathfinderPainter(const PathfinderOptions& options,
                    const std::vector<PaddleKit>& kits);

  /// Picture `index` of the set that `seed` names; a pure function of both.
  Scene draw(uint64_t seed, uint64_t index, std::span<uint8_t> pixels);

 private:
  const PathfinderOptions& options_;
  std::vector<ContourPlacer> placers_{};  ///< one a margin
};

/// One for each margin.
std::vector<PaddleKit> make_paddle_kits(const PathfinderOptions& options);

}  // namespace luna::data
