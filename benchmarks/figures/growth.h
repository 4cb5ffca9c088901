// Memory beside the least possible, growth with n, cost of the hidden width.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "figures/figure.h"
#include "luna/bench/memory.h"
#include "luna/nn/feature_map.h"

namespace luna::figures {

/// Peak of forward+backward over q, k, v, out and their gradients.
inline std::vector<Figure> memory() {
  std::vector<Figure> figures;
  for (const std::int64_t length : {512, 4096, 8192}) {
    for (const bool is_causal : {false, true}) {
      bench::Work work = standard_work(length);
      work.causal = is_causal;
      const auto mode = bench::Mode::kForwardBackward;
      const bench::Inputs inputs = bench::make_inputs(work);
      const bench::Contestant runner =
          bench::contestant(bench::make_contender("universal", work, inputs),
                            mode, inputs.out_gradient);
      runner.run();  // buffers that libraries make once are not counted
      runner.reset();
      const double least = 2.0 * static_cast<double>(inputs.bytes(mode));
      const double given = static_cast<double>(inputs.bytes(mode));
      const bench::MemoryMeter tensors;
      const bench::ResidentMeter resident;
      runner.run();
      const double by_tensors = given + static_cast<double>(tensors.peak());
      const double by_system = given + static_cast<double>(resident.peak());
      runner.reset();
      const std::string what = fmt::format(
          "universal{}, n = {}: peak of fwd+bwd / q, k, v, out, grads",
          is_causal ? " causal" : "", length);
      const Json details = {{"least_bytes", least},
                            {"tensor_bytes", by_tensors},
                            {"resident_bytes", by_system}};
      figures.push_back({what + " (tensors)", by_tensors / least, "×",
                         Figure::Goal::kAtMost, 1.3, 0, details});
      if (resident.peak() < 0) continue;  // the system does not tell
      figures.push_back({what + " (resident)", by_system / least, "×",
                         Figure::Goal::kAtMost, 1.3, 0, details});
    }
  }
  return figures;
}

/// Least-squares slope of log y over log x.
inline double log_log_slope(const std::vector<double>& x,
                            const std::vector<double>& y) {
  double mean_x = 0, mean_y = 0, above = 0, below = 0;
  const double count = static_cast<double>(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    mean_x += std::log(x[i]) / count;
    mean_y += std::log(y[i]) / count;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    above += (std::log(x[i]) - mean_x) * (std::log(y[i]) - mean_y);
    below += (std::log(x[i]) - mean_x) * (std::log(x[i]) - mean_x);
  }
  return above / below;
}

/// Forward+backward of one sequence of two heads, n from 2^10 to 2^18.
inline std::vector<Figure> growth() {
  struct Case {
    const char* name;
    bool causal;
  };
  std::vector<Figure> figures;
  for (const Case c : {Case{"universal", false}, Case{"universal", true},
                       Case{"nested", false}, Case{"nested", true}}) {
    const auto mode = bench::Mode::kForwardBackward;
    std::vector<bench::Contestant> contestants;
    std::vector<double> lengths, given;
    for (int power = 10; power <= 18; ++power) {
      bench::Work work;
      work.batch = 1;
      work.heads = 2;
      work.length = std::int64_t{1} << power;
      work.causal = c.causal;
      const bench::Inputs inputs = bench::make_inputs(work);
      contestants.push_back(
          bench::contestant(bench::make_contender(c.name, work, inputs), mode,
                            inputs.out_gradient));
      contestants.back().name = fmt::format("n = {}", work.length);
      lengths.push_back(static_cast<double>(work.length));
      given.push_back(static_cast<double>(inputs.bytes(mode)));
    }
    const auto outcomes = bench::race(contestants, race_options(7, 30));
    std::vector<double> seconds, bytes;
    double spread = 0;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      seconds.push_back(outcomes[i].time.median);
      bytes.push_back(given[i] + static_cast<double>(outcomes[i].peak));
      spread = std::max(spread, outcomes[i].time.spread());
    }
    const std::string who =
        fmt::format("{}{} fwd+bwd, n = 2^10 to 2^18: slope of ", c.name,
                    c.causal ? " causal" : "");
    Json details = outcomes_json(contestants, outcomes);
    figures.push_back({who + "time", log_log_slope(lengths, seconds), "",
                       Figure::Goal::kAtMost, 1.03, spread, details});
    details = Json::object();
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      details[contestants[i].name] = {{"peak_bytes", bytes[i]}};
    }
    figures.push_back({who + "memory", log_log_slope(lengths, bytes), "",
                       Figure::Goal::kAtMost, 1.03, 0, details});
  }
  return figures;
}

/// psi's hidden width must not cost time: 16, 64 and 256.
inline std::vector<Figure> hidden_width() {
  std::vector<Figure> figures;
  const bench::Work work = standard_work(1024);
  const bench::Inputs in = bench::make_inputs(work);
  for (const auto mode :
       {bench::Mode::kForward, bench::Mode::kForwardBackward}) {
    std::vector<bench::Contestant> contestants;
    for (const std::int64_t width : {16, 64, 256}) {
      nn::FeatureMapOptions options;
      options.hidden = width;
      nn::FeatureMap map(work.width, options);
      std::vector<at::Tensor> leaves = {in.query, in.key, in.value};
      for (const at::Tensor& p : map->parameters()) leaves.push_back(p);
      const bench::Contender contender{
          fmt::format("hidden {}", width),
          [map, in] {
            return std::get<0>(
                nn::FeatureMap(map)->attend(in.query, in.key, in.value));
          },
          leaves};
      contestants.push_back(
          bench::contestant(contender, mode, in.out_gradient));
    }
    const auto outcomes = bench::race(contestants, race_options(15, 30));
    double low = INFINITY, high = 0, spread = 0;
    for (const bench::Outcome& o : outcomes) {
      low = std::min(low, o.time.median);
      high = std::max(high, o.time.median);
      spread = std::max(spread, o.time.spread());
    }
    figures.push_back({fmt::format("universal {}, hidden width 16, 64, 256: "
                                   "slowest / fastest",
                                   mode_name(mode)),
                       high / low, "×", Figure::Goal::kAtMost, 1.15, spread,
                       outcomes_json(contestants, outcomes)});
  }
  return figures;
}

}  // namespace luna::figures
