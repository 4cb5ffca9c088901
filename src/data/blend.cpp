#include "data/blend.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "data/random.h"

namespace luna::data {
namespace {

/// Keeps these draws apart from others of the same seed (see augment.cpp).
constexpr uint64_t kStreams = uint64_t{3} << 62;

}  // namespace

Blend draw_blend(uint64_t seed, int64_t position, const BlendShares& shares,
                 int64_t height, int64_t width) {
  Random random(seed, kStreams + static_cast<uint64_t>(position));
  const double which = random.uniform(), share = random.uniform();
  Blend blend;
  if (which < shares.mixup) {
    blend.keep = share;
    blend.bottom = height;
    blend.right = width;
  } else if (which < shares.mixup + shares.cutmix) {
    const auto piece = [&](int64_t length, int64_t& begin, int64_t& end) {
      const double side = std::sqrt(share) * static_cast<double>(length);
      const auto half = static_cast<int64_t>(side) / 2;
      const int64_t middle = random.below(static_cast<uint32_t>(length));
      begin = std::max<int64_t>(0, middle - half);
      end = std::min(length, middle + half);
    };
    blend.keep = 0;
    piece(height, blend.top, blend.bottom);
    piece(width, blend.left, blend.right);
  }
  const int64_t box = (blend.bottom - blend.top) * (blend.right - blend.left);
  blend.own = 1 - (1 - blend.keep) * static_cast<double>(box) /
                      static_cast<double>(height * width);
  return blend;
}

at::Tensor blend_pictures(const at::Tensor& pixels, const at::Tensor& blends) {
  // [B,1,1,1]
  const auto column = [&](int64_t i) {
    return blends.select(1, i).view({-1, 1, 1, 1});
  };
  const at::Tensor y =
      at::arange(pixels.size(2), blends.options()).unsqueeze(1);
  const at::Tensor x = at::arange(pixels.size(3), blends.options());
  const at::Tensor inside = y.ge(column(1))
                                .logical_and(y.lt(column(2)))
                                .logical_and(x.ge(column(3)))
                                .logical_and(x.lt(column(4)));
  const at::Tensor taken = at::where(inside, 1 - column(0), 0.0);
  return pixels +
         taken.to(pixels.scalar_type()) * (of_partner(pixels) - pixels);
}

at::Tensor own_share(const at::Tensor& blends) {
  return blends.select(1, Blend::kColumns - 1);
}

at::Tensor of_partner(const at::Tensor& each) { return each.flip(0); }

}  // namespace luna::data
