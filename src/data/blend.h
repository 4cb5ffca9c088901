// Pictures blended with others of their batch (mixup, cutmix).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace luna::data {

/// How a picture takes from its partner, picture B - 1 - i of the batch: within
/// a box it is `keep` * itself + (1 - keep) * the partner. Mixup is a box as
/// large as the picture, cutmix one that keeps nothing.
struct Blend {
  double keep = 1;
  int64_t top = 0, bottom = 0, left = 0, right = 0;  ///< ends not counted
  double own = 1;  ///< share of the label that is the picture's own

  static constexpr int64_t kColumns = 6;
  std::array<float, kColumns> row() const {
    return {static_cast<float>(keep),   static_cast<float>(top),
            static_cast<float>(bottom), static_cast<float>(left),
            static_cast<float>(right),  static_cast<float>(own)};
  }
};

struct BlendShares {
  double mixup = 0, cutmix = 0;  ///< of all pictures

  bool any() const { return mixup > 0 || cutmix > 0; }
};

/// A pure function of (seed, position in the run). Mixup keeps, and cutmix cuts
/// out, a share that is uniform over 0 to 1; a box that would reach over the
/// edge is cut there.
Blend draw_blend(uint64_t seed, int64_t position, const BlendShares& shares,
                 int64_t height, int64_t width);

/// pixels [B,C,height,width], floating; blends [B,6], Blend::row of each.
at::Tensor blend_pictures(const at::Tensor& pixels, const at::Tensor& blends);

/// [B]: how much of a label is the picture's own.
at::Tensor own_share(const at::Tensor& blends);
/// [B]: of something that each picture of a batch has, the partner's.
at::Tensor of_partner(const at::Tensor& each);

}  // namespace luna::data
