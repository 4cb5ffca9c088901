#include <ATen/ATen.h>
#include <luna/nn/feature_map.h>

#include <cmath>

namespace luna::nn {
namespace {

constexpr double kRange = 4;
/// exp(u) of a coordinate as it is would be too flat: a sum over coordinates
/// has to do what was a product.
constexpr double kSteepness = 2;

/// [M,d]: the coordinates, if psi rises only their negatives too, then blocks
/// of orthogonal directions, long enough for exp(w.q) exp(w.k) to have
/// exp(q.k / sqrt d) as its mean over them.
at::Tensor directions(int64_t count, int64_t width, bool both_ways,
                      const at::TensorOptions& options) {
  const auto identity = at::eye(width, options);
  const auto random = [&] {
    const double length = std::pow(static_cast<double>(width), 0.25);
    return std::get<0>(at::linalg_qr(at::randn({width, width}, options))) *
           length;
  };
  std::vector<at::Tensor> blocks;
  // Fewer than the coordinates would not see the rest of x.
  if (count < width) {
    blocks = {random()};
  } else {
    blocks = {identity};
    if (!both_ways) blocks.push_back(-identity);
  }
  while (std::ssize(blocks) * width < count) blocks.push_back(random());
  return at::cat(blocks).narrow(0, 0, count) * kSteepness;
}

/// a_c: 1, -1, 1/2, -1/2, 3/2, -3/2, 2, -2, 5/2, ...
double slope(int64_t channel) {
  const int64_t pair = channel / 2;
  const double size = pair == 0   ? 1.0
                      : pair == 1 ? 0.5
                                  : 0.5 * static_cast<double>(pair + 1);
  return channel % 2 == 0 ? size : -size;
}

}  // namespace

void start_from_softmax(FeatureMapImpl& map) {
  const at::NoGradGuard no_grad;
  const FeatureMapOptions& o = map.options();
  const at::TensorOptions options =
      at::device(map.projection.device()).dtype(at::kDouble);
  const int64_t width = map.projection.size(-1);
  const int64_t maps = o.per_head ? map.projection.size(0) : 1;
  for (int64_t h = 0; h < maps; ++h) {
    const at::Tensor of_head = o.per_head ? map.projection[h] : map.projection;
    of_head.copy_(directions(o.M, width, /*both_ways=*/o.L > 1, options));
  }
  map.projection_bias.zero_();

  // psi(u) = b + sum_j a_j ReLU(u - t_j) goes through exp at every knot t_j.
  const at::Tensor ends = at::linspace(-kRange, kRange, o.hidden + 1, options);
  const at::Tensor knots = ends.narrow(0, 0, o.hidden);
  map.hidden_weight.fill_(1);
  map.hidden_bias.copy_(-knots.expand_as(map.hidden_bias));
  for (int64_t c = 0; c < o.L; ++c) {
    const at::Tensor value = (ends * slope(c)).exp();
    const at::Tensor steepness = value.diff() / ends.diff();
    map.output_weight[c].copy_(
        at::cat({steepness.narrow(0, 0, 1), steepness.diff()}));
    map.output_bias[c].copy_(value[0]);
  }
}

}  // namespace luna::nn
