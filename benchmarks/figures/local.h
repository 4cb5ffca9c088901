// Sums over neighbours beside torch's depthwise convolution.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "figures/figure.h"
#include "ops/local_sum.h"

namespace luna::figures {

/// 8 sequences of 1,024 tokens of 64 channels: lines, and pictures of 32 x 32.
inline std::vector<Figure> local() {
  std::vector<Figure> figures;
  constexpr std::int64_t kBatch = 8, kLength = 1024, kWidth = 64, kTaps = 5;
  for (const std::int64_t columns : {0, 32}) {
    const std::int64_t rows = columns > 0 ? kTaps : 1;
    const auto leaf = [](at::IntArrayRef sizes) {
      return at::randn(sizes).requires_grad_();
    };
    const at::Tensor x = leaf({kBatch, kLength, kWidth});
    const at::Tensor weight = leaf({kWidth, rows, kTaps});
    const bench::Contender ours{
        "local_sum",
        [=] { return ops::local_sum(x, weight, columns); },
        {x, weight}};
    const bench::Contender torchs{
        "convolution",
        [=] {
          const at::Tensor pictures = x.transpose(1, 2).reshape(
              {kBatch, kWidth, -1, columns > 0 ? columns : kLength});
          return at::conv2d(pictures, weight.unsqueeze(1), {}, 1,
                            at::IntArrayRef{rows / 2, kTaps / 2}, 1, kWidth)
              .flatten(2)
              .transpose(1, 2);
        },
        {x, weight}};
    const at::Tensor gradient = at::randn({kBatch, kLength, kWidth});
    for (const auto mode :
         {bench::Mode::kForward, bench::Mode::kForwardBackward}) {
      const std::vector<bench::Contestant> both = {
          bench::contestant(ours, mode, gradient),
          bench::contestant(torchs, mode, gradient)};
      const auto outcomes = bench::race(both, race_options(31, 4));
      figures.push_back(
          {fmt::format("local sum {}, {} taps: beside torch's convolution",
                       mode_name(mode),
                       columns > 0 ? fmt::format("{} × {}", kTaps, kTaps)
                                   : fmt::to_string(kTaps)),
           ratio(outcomes[1], outcomes[0]), "×", Figure::Goal::kNone, 0,
           ratio_spread(outcomes[1], outcomes[0]),
           outcomes_json(both, outcomes)});
    }
  }
  return figures;
}

}  // namespace luna::figures
