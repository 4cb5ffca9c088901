// One token of a stream: universal_attention_step with its table at hand.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "figures/figure.h"
#include "luna/nn/feature_map.h"
#include "luna/ops.h"

namespace luna::figures {

inline std::vector<Figure> step() {
  const c10::AutoGradMode no_gradients(false);
  constexpr std::int64_t kBatch = 8, kHeads = 8, kWidth = 64;
  at::manual_seed(0);
  nn::FeatureMap map(kWidth);
  const ops::FeatureMapParameters parameters = map->map_parameters();
  ops::UniversalAttentionStepOptions options;
  options.table =
      ops::universal_table(parameters.hidden_weight, parameters.hidden_bias,
                           parameters.output_weight, parameters.output_bias);
  const auto token = [&] { return at::randn({kBatch, kHeads, kWidth}); };
  const at::Tensor query = token(), key = token(), value = token();

  std::vector<bench::Contestant> contestants;
  for (const std::int64_t context : {0, 1024, 32768}) {
    const auto prompt = [&] {
      return at::randn({kBatch, kHeads, context, kWidth});
    };
    ops::UniversalAttentionOptions causal;
    causal.causal = true;
    const at::Tensor state = std::get<1>(ops::universal_attention(
        prompt(), prompt(), prompt(), parameters, causal));
    contestants.push_back({fmt::format("after {} tokens", context),
                           [=] {
                             ops::universal_attention_step(
                                 query, key, value, state, parameters, options);
                           },
                           {}});
  }
  const auto outcomes = bench::race(contestants, race_options(41, 5));
  std::vector<double> micros;
  Figure cost{"universal step, B·H = 64: µs per head per core, worst context",
              0, "µs", Figure::Goal::kAtMost, 0.5};
  for (const bench::Outcome& o : outcomes) {
    micros.push_back(o.time.median * 1e6 * at::get_num_threads() /
                     (kBatch * kHeads));
    if (micros.back() > cost.value) {
      cost.value = micros.back();
      cost.spread = o.time.spread();
    }
  }
  cost.details = outcomes_json(contestants, outcomes);
  const auto [least, most] = std::minmax_element(micros.begin(), micros.end());
  // 10 %: what equal work may differ by chance in one run.
  return {cost,
          {"universal step: slowest context / fastest (independent of n)",
           *most / *least, "×", Figure::Goal::kAtMost, 1.1, cost.spread,
           cost.details}};
}

}  // namespace luna::figures
