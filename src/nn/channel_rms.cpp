#include "nn/channel_rms.h"

#include <ATen/ATen.h>

namespace luna::nn {

at::Tensor scale_channels(const at::Tensor& phi, int64_t channels,
                          const std::optional<at::Tensor>& mask) {
  const auto projections = phi.size(-1) / channels;
  const auto dtype = at::promote_types(phi.scalar_type(), at::kFloat);
  const auto split =
      phi.to(dtype).unflatten(-1, at::IntArrayRef{projections, channels});
  auto squares = split.square() * static_cast<double>(projections);
  at::Tensor mean_square;
  if (mask) {
    const auto valid = (mask->dim() == 2 ? mask->unsqueeze(1) : *mask)
                           .gt(0)
                           .expand({phi.size(0), phi.size(1), phi.size(2)});
    squares = at::where(valid.unsqueeze(-1).unsqueeze(-1), squares, 0.0);
    const auto count = valid.sum().clamp_min(1) * projections;
    mean_square = squares.flatten(0, -2).sum(0) / count;
  } else {
    mean_square = squares.flatten(0, -2).mean(0);
  }
  // The square root's slope at 0, where a channel is dead, is infinite.
  const auto rms = mean_square.clamp_min(1e-24).sqrt();
  const auto scale = (0.1 / (rms + 1e-6)).clamp_max(1);
  return (split * scale).flatten(-2).to(phi.scalar_type());
}

}  // namespace luna::nn
