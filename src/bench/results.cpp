#include "luna/bench/results.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace luna::bench {

std::string_view mode_name(Mode mode) {
  return mode == Mode::kForward ? "forward" : "forward+backward";
}

Results start_results(const Settings& settings) {
  Results results;
  results.created =
      fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  results.machine = this_machine();
  results.settings = settings;
  return results;
}

const Measurement* Results::find(std::string_view attention, Mode mode,
                                 std::int64_t length) const {
  const auto found = std::find_if(
      measurements.begin(), measurements.end(), [&](const Measurement& m) {
        return m.attention == attention && m.mode == mode && m.length == length;
      });
  return found == measurements.end() ? nullptr : &*found;
}

std::vector<std::string> Results::attentions() const {
  std::vector<std::string> names;
  for (const Measurement& m : measurements) {
    if (std::find(names.begin(), names.end(), m.attention) == names.end()) {
      names.push_back(m.attention);
    }
  }
  return names;
}

std::optional<double> Results::speed_up(const Measurement& m) const {
  const Measurement* softmax = find(kReference, m.mode, m.length);
  if (softmax == nullptr || m.time.median <= 0) return std::nullopt;
  return softmax->time.median / m.time.median;
}

std::vector<Crossover> crossovers(const Results& results) {
  std::vector<Crossover> found;
  for (const std::string& name : results.attentions()) {
    if (name == kReference || name == kPlainFormula || name == kSdpaPair) {
      continue;
    }
    for (const Mode mode : {Mode::kForward, Mode::kForwardBackward}) {
      struct Ratio {
        double length, slowness;
      };
      std::vector<Ratio> ratios;
      for (const Measurement& m : results.measurements) {
        if (m.attention != name || m.mode != mode) continue;
        const std::optional<double> speed = results.speed_up(m);
        if (speed) {
          ratios.push_back({static_cast<double>(m.length), 1 / *speed});
        }
      }
      if (ratios.empty()) continue;
      std::sort(ratios.begin(), ratios.end(),
                [](Ratio a, Ratio b) { return a.length < b.length; });
      std::size_t first = ratios.size();
      while (first > 0 && ratios[first - 1].slowness <= 1) --first;
      Crossover c{name, mode, Crossover::Kind::kNotReached,
                  ratios.back().length};
      if (first == 0) {
        c.kind = Crossover::Kind::kFromTheStart;
        c.length = ratios.front().length;
      } else if (first < ratios.size()) {
        c.kind = Crossover::Kind::kBetween;
        const Ratio& a = ratios[first - 1];
        const Ratio& b = ratios[first];
        const double share = std::log(a.slowness) /
                             (std::log(a.slowness) - std::log(b.slowness));
        c.length = a.length * std::pow(b.length / a.length, share);
      }
      found.push_back(c);
    }
  }
  return found;
}

std::vector<Change> compare(const Results& before, const Results& after,
                            double threshold) {
  std::vector<Change> changes;
  for (const Measurement& now : after.measurements) {
    const Measurement* then = before.find(now.attention, now.mode, now.length);
    if (then == nullptr || then->time.median <= 0) continue;
    Change change{*then, now, now.time.median / then->time.median};
    change.slower =
        change.ratio > 1 + threshold && now.time.low > then->time.high;
    change.faster =
        change.ratio < 1 / (1 + threshold) && now.time.high < then->time.low;
    changes.push_back(change);
  }
  return changes;
}

std::vector<std::string> differences(const Results& before,
                                     const Results& after) {
  std::vector<std::string> found;
  const auto check = [&](std::string_view what, const auto& then,
                         const auto& now) {
    if (then == now) return;
    found.push_back(fmt::format("{}: {} before, {} now", what, then, now));
  };
  const Machine& m = before.machine;
  const Settings& s = before.settings;
  check("processor", m.cpu, after.machine.cpu);
  check("threads", m.threads, after.machine.threads);
  check("instruction set", m.isa, after.machine.isa);
  check("torch", m.torch_version, after.machine.torch_version);
  check("model", s.model, after.settings.model);
  check("tokens", s.tokens, after.settings.tokens);
  check("heads", s.heads, after.settings.heads);
  check("head width", s.width, after.settings.width);
  check("dtype", s.dtype, after.settings.dtype);
  check("causal", s.causal, after.settings.causal);
  check("packed length", s.packed_length, after.settings.packed_length);
  return found;
}

}  // namespace luna::bench
