#include <ATen/ATen.h>
#include <luna/nn/feature_map.h>

namespace luna::nn {

void start_from_ramps(FeatureMapImpl& map) {
  const at::NoGradGuard no_grad;
  const FeatureMapOptions& o = map.options();
  TORCH_CHECK_VALUE(!o.shared_channels || o.hidden >= o.L,
                    "FeatureMap: expected hidden >= L with start = ramps and "
                    "shared_channels, got ",
                    o.hidden, " and ", o.L);
  TORCH_CHECK_VALUE(o.spread > 0,
                    "FeatureMap: expected spread > 0 with start = ramps, got ",
                    o.spread);
  const int64_t pairs = (o.L + 1) / 2;
  map.output_weight.zero_();
  map.output_bias.fill_(o.lift);
  for (int64_t c = 0; c < o.L; ++c) {
    const double threshold = 2.0 * o.spread * static_cast<double>(c / 2) /
                             static_cast<double>(pairs);
    const int64_t trunk = o.shared_channels ? 0 : c;
    const int64_t unit = o.shared_channels ? c : 0;
    map.hidden_weight[trunk][unit].fill_(c % 2 == 0 ? 1 : -1);
    map.hidden_bias[trunk][unit].fill_(-threshold);
    map.output_weight[c][unit].fill_(1 / o.spread);
  }
}

}  // namespace luna::nn
