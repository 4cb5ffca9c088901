#include "luna/bench/attention_bench.h"

#include <c10/util/Exception.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>

#include "luna/bench/contenders.h"
#include "luna/bench/dtype.h"
#include "luna/nn/attention_registry.h"

namespace luna::bench {
namespace {

using Clock = std::chrono::steady_clock;

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

/// Softmax first, then what was asked for with its peers, in the order of the
/// registry.
std::vector<std::string> line_up(const Settings& settings) {
  std::vector<std::string> names = {std::string(kReference)};
  for (const nn::AttentionInfo& info : nn::attentions()) {
    const bool asked =
        settings.attentions.empty() || contains(settings.attentions, info.name);
    if (!asked || info.name == kReference) continue;
    names.push_back(info.name);
    if (info.name == "nested") names.emplace_back(kSdpaPair);
  }
  // The slow one last: what was measured before it is safe.
  if (contains(names, "universal") && settings.plain != "none") {
    names.emplace_back(kPlainFormula);
  }
  return names;
}

/// The plain formula costs the same at every length, for equal tokens.
std::vector<std::int64_t> plain_lengths(const Settings& settings) {
  const auto& all = settings.lengths;
  if (settings.plain == "all") return all;
  if (settings.plain == "one") return {all[all.size() / 2]};
  return {all.front(), all[all.size() / 2], all.back()};
}

class AttentionBench {
 public:
  AttentionBench(const Settings& settings, const Hooks& hooks)
      : settings_(settings), hooks_(hooks), names_(line_up(settings)) {
    results_.created = utc_now();
    results_.machine = this_machine();
    results_.settings = settings;
    results_.settings.attentions = names_;
  }

  Results run() {
    groups_left_ = settings_.lengths.size() * settings_.modes.size();
    groups_ = groups_left_;
    for (const std::int64_t length : settings_.lengths) {
      for (const Mode mode : settings_.modes) {
        if (!hooks_.stop()) run_group(length, mode);
        --groups_left_;
      }
    }
    results_.complete = !hooks_.stop();
    return results_;
  }

 private:
  double seconds_left() const {
    return settings_.budget -
           std::chrono::duration<double>(Clock::now() - start_).count();
  }

  /// Why this one is left out here; empty: it is not.
  std::string reason_to_skip(const std::string& name, const Work& work,
                             Mode mode) const {
    if (name == kPlainFormula && !work.causal) {
      const auto lengths = plain_lengths(settings_);
      if (std::find(lengths.begin(), lengths.end(), work.length) ==
          lengths.end()) {
        return "it costs the same at every length (--plain all measures it "
               "everywhere)";
      }
    }
    const std::string why = obstacle(name, work, mode, results_.machine.memory);
    if (!why.empty()) return why;
    const auto last = last_time_.find({name, mode});
    if (last == last_time_.end()) return "";
    const double growth = name == kReference
                              ? static_cast<double>(work.length) /
                                    static_cast<double>(last->second.length)
                              : 1.0;
    if (last->second.seconds * growth > seconds_left()) {
      return fmt::format("the time budget of {:g} s", settings_.budget);
    }
    return "";
  }

  void run_group(std::int64_t length, Mode mode) {
    const Work work{.batch = settings_.tokens / length,
                    .heads = settings_.heads,
                    .length = length,
                    .width = settings_.width,
                    .packed_length = settings_.packed_length,
                    .causal = settings_.causal,
                    .dtype = parse_dtype(settings_.dtype)};
    std::vector<std::string> racing;
    for (const std::string& name : names_) {
      const std::string reason = reason_to_skip(name, work, mode);
      if (reason.empty()) {
        racing.push_back(name);
      } else {
        results_.skipped.push_back({name, mode, length, reason});
      }
    }
    const std::vector<Outcome> outcomes = race_group(racing, work, mode);
    for (std::size_t i = 0; i < racing.size(); ++i) {
      const Outcome& o = outcomes[i];
      if (o.time.runs == 0) continue;
      results_.measurements.push_back(
          {racing[i], mode, length, work.batch, o.time, o.peak});
      last_time_[{racing[i], mode}] = {length, o.time.median};
    }
    hooks_.done(results_, mode, length);
  }

  std::vector<Outcome> race_group(const std::vector<std::string>& names,
                                  const Work& work, Mode mode) {
    const Inputs inputs = make_inputs(work);
    std::vector<Contestant> contestants;
    for (const std::string& name : names) {
      contestants.push_back(contestant(make_contender(name, work, inputs), mode,
                                       inputs.out_gradient));
    }
    RaceOptions options;
    options.repeat = settings_.repeat;
    options.budget =
        std::max(seconds_left(), 0.0) / static_cast<double>(groups_left_);
    options.stop = hooks_.stop;
    const double runs =
        static_cast<double>(names.size()) * (settings_.repeat + 1);
    double done = 0;
    options.after_run = [&](std::size_t i) {
      done += 1;
      const double groups = static_cast<double>(groups_);
      const double before = groups - static_cast<double>(groups_left_);
      hooks_.progress((before + std::min(done / runs, 1.0)) / groups,
                      fmt::format("n = {}, {}: {}", work.length,
                                  mode_name(mode), names[i]));
    };
    std::vector<Outcome> outcomes = race(contestants, options);
    for (Outcome& o : outcomes) o.peak += inputs.bytes(mode);
    return outcomes;
  }

  struct Last {
    std::int64_t length;
    double seconds;
  };

  Settings settings_;
  Hooks hooks_;
  std::vector<std::string> names_;
  Results results_;
  std::map<std::pair<std::string, Mode>, Last> last_time_;
  std::size_t groups_ = 0, groups_left_ = 0;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

Settings quick_settings() {
  Settings settings;
  settings.tokens = 4096;
  settings.lengths = {128, 256, 512, 1024, 2048, 4096};
  settings.repeat = 5;
  settings.budget = 45;
  settings.plain = "one";
  return settings;
}

void check_settings(const Settings& s) {
  const auto positive = [](const char* name, std::int64_t value) {
    TORCH_CHECK_VALUE(value >= 1, name, ": expected at least 1, got ", value);
  };
  positive("tokens", s.tokens);
  positive("heads", s.heads);
  positive("width", s.width);
  positive("packed length", s.packed_length);
  positive("repeat", s.repeat);
  TORCH_CHECK_VALUE(s.budget > 0, "time budget: expected seconds > 0, got ",
                    s.budget);
  TORCH_CHECK_VALUE(!s.lengths.empty(), "lengths: expected at least one");
  TORCH_CHECK_VALUE(!s.modes.empty(), "modes: expected at least one");
  for (const std::int64_t n : s.lengths) {
    TORCH_CHECK_VALUE(n >= 1 && n <= s.tokens && s.tokens % n == 0,
                      "lengths: expected divisors of the ", s.tokens,
                      " tokens, got ", n);
  }
  TORCH_CHECK_VALUE(std::is_sorted(s.lengths.begin(), s.lengths.end()) &&
                        std::adjacent_find(s.lengths.begin(),
                                           s.lengths.end()) == s.lengths.end(),
                    "lengths: expected rising ones, each once");
  for (const std::string& name : s.attentions) nn::find_attention(name);
  parse_dtype(s.dtype);
  const std::vector<std::string> plain = {"some", "one", "all", "none"};
  TORCH_CHECK_VALUE(contains(plain, s.plain), "plain: expected one of ",
                    nn::known_and_nearest(s.plain, plain), ", got ", s.plain);
}

Results bench_attention(const Settings& settings, const Hooks& hooks) {
  check_settings(settings);
  return AttentionBench(settings, hooks).run();
}

}  // namespace luna::bench
