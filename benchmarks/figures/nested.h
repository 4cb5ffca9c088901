// Nested attention beside two SDPA calls.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "figures/figure.h"
#include "luna/ops.h"

namespace luna::figures {

inline std::vector<Figure> nested() {
  std::vector<Figure> figures;
  for (const std::int64_t packed_length : {16, 256}) {
    for (const auto mode :
         {bench::Mode::kForward, bench::Mode::kForwardBackward}) {
      Figure figure;
      figure.what =
          fmt::format("nested {}, l = {}, n = 256 to 65,536: beside two SDPA",
                      mode_name(mode), packed_length);
      figure.unit = "×";
      figure.goal = Figure::Goal::kAtLeast;
      figure.target = 1;
      figure.value = INFINITY;
      for (const std::int64_t length : {256, 1024, 4096, 16384, 65536}) {
        bench::Work work = standard_work(length);
        work.packed_length = packed_length;
        const bench::Inputs inputs = bench::make_inputs(work);
        std::vector<bench::Contestant> contestants;
        for (const char* name : {"nested", "sdpa-pair"}) {
          contestants.push_back(
              bench::contestant(bench::make_contender(name, work, inputs), mode,
                                inputs.out_gradient));
        }
        const auto outcomes = bench::race(contestants, race_options(9, 16));
        const double speed = ratio(outcomes[1], outcomes[0]);
        figure.details[fmt::format("n = {}", length)] = {
            {"speed", speed}, {"times", outcomes_json(contestants, outcomes)}};
        if (speed < figure.value) {
          figure.value = speed;
          figure.spread = ratio_spread(outcomes[1], outcomes[0]);
        }
      }
      figures.push_back(figure);
    }
  }
  return figures;
}

/// One head over one long sequence: does it use all cores?
inline std::vector<Figure> nested_long() {
  std::vector<Figure> figures;
  for (const std::int64_t packed_length : {16, 256}) {
    bench::Work work;
    work.batch = work.heads = 1;
    work.length = 65536;
    work.packed_length = packed_length;
    const bench::Inputs in = bench::make_inputs(work);
    const at::Tensor packed = at::randn({1, 1, packed_length, work.width});
    const bench::Contender pack{
        "pack",
        [&] { return ops::pack_attention(packed, in.key, in.value); },
        {}};
    const bench::Contender sdpa{"SDPA",
                                [&] {
                                  return at::scaled_dot_product_attention(
                                      packed, in.key, in.value);
                                },
                                {}};
    const std::vector<bench::Contestant> packs = {
        bench::contestant(pack, bench::Mode::kForward, {}),
        bench::contestant(sdpa, bench::Mode::kForward, {})};
    const auto alone = bench::race(packs, race_options(15, 5));
    figures.push_back(
        {fmt::format("pack forward, B·H = 1, l = {}, n = 65,536: beside SDPA",
                     packed_length),
         ratio(alone[1], alone[0]), "×", Figure::Goal::kAtLeast, 1.5,
         ratio_spread(alone[1], alone[0]), outcomes_json(packs, alone)});

    std::vector<bench::Contestant> pairs;
    for (const char* name : {"nested", "sdpa-pair"}) {
      pairs.push_back(bench::contestant(bench::make_contender(name, work, in),
                                        bench::Mode::kForwardBackward,
                                        in.out_gradient));
    }
    const auto both = bench::race(pairs, race_options(11, 8));
    figures.push_back(
        {fmt::format(
             "nested fwd+bwd, B·H = 1, l = {}, n = 65,536: beside two SDPA",
             packed_length),
         ratio(both[1], both[0]), "×", Figure::Goal::kAtLeast, 1.5,
         ratio_spread(both[1], both[0]), outcomes_json(pairs, both)});
  }
  return figures;
}

}  // namespace luna::figures
