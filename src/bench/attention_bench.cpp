#include "luna/bench/attention_bench.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
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

/// About what a plain formula of `tokens` will take, from a small one.
double predict_plain(const Settings& settings, Mode mode) {
  const Work work{.heads = settings.heads,
                  .length = std::min<std::int64_t>(settings.tokens, 64),
                  .width = settings.width,
                  .dtype = parse_dtype(settings.dtype)};
  const Inputs inputs = make_inputs(work);
  RaceOptions options;
  options.repeat = 1;
  const Contestant probe =
      contestant(make_contender(std::string(kPlainFormula), work, inputs), mode,
                 inputs.out_gradient);
  return race({probe}, options)[0].time.median *
         static_cast<double>(settings.tokens) /
         static_cast<double>(work.length);
}

class AttentionBench {
 public:
  AttentionBench(const Settings& settings, const Hooks& hooks)
      : settings_(settings), hooks_(hooks), results_(start_results(settings)) {
    results_.settings.attentions = line_up(settings);
  }

  Results run() {
    set_up();
    RaceOptions options;
    options.repeat = settings_.repeat;
    options.budget = settings_.budget;
    options.stop = hooks_.stop;
    options.enter = [&](std::size_t i) { return may_enter(cases_[i]); };
    options.after_run = [&](std::size_t i, int round, double seconds) {
      after_run(cases_[i], round, seconds);
    };
    const std::vector<Outcome> outcomes = race(contestants_, options);
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const Case& c = cases_[i];
      const Outcome& o = outcomes[i];
      if (o.time.runs == 0) continue;
      results_.measurements.push_back({c.name, c.mode, c.work.length,
                                       c.work.batch, o.time,
                                       o.peak + c.input_bytes});
    }
    results_.complete = !hooks_.stop();
    return results_;
  }

 private:
  struct Case {
    std::string name;
    Mode mode;
    Work work;
    std::int64_t input_bytes;
  };

  /// Every length, mode and name that has no obstacle, as one long race. The
  /// plain formula runs when all others have run: what it costs is theirs.
  void set_up() {
    const Inputs drawn = make_inputs({.batch = 1,
                                      .heads = settings_.heads,
                                      .length = settings_.tokens,
                                      .width = settings_.width,
                                      .dtype = parse_dtype(settings_.dtype)});
    for (const bool plain : {false, true}) {
      for (const std::int64_t length : settings_.lengths) {
        const Work work{.batch = settings_.tokens / length,
                        .heads = settings_.heads,
                        .length = length,
                        .width = settings_.width,
                        .packed_length = settings_.packed_length,
                        .causal = settings_.causal,
                        .dtype = parse_dtype(settings_.dtype)};
        const Inputs inputs = reshape(drawn, work);
        for (const Mode mode : settings_.modes) {
          for (const std::string& name : results_.settings.attentions) {
            if ((name == kPlainFormula) == plain) {
              add_case(name, work, mode, inputs);
            }
          }
        }
      }
    }
  }

  void add_case(const std::string& name, const Work& work, Mode mode,
                const Inputs& inputs) {
    const std::string why = reason_to_skip(name, work, mode);
    if (!why.empty()) {
      results_.skipped.push_back({name, mode, work.length, why});
      return;
    }
    cases_.push_back({name, mode, work, inputs.bytes(mode)});
    contestants_.push_back(contestant(make_contender(name, work, inputs), mode,
                                      inputs.out_gradient));
  }

  std::string reason_to_skip(const std::string& name, const Work& work,
                             Mode mode) const {
    const std::string why = obstacle(name, work, mode, results_.machine.memory);
    if (!why.empty() || name != kPlainFormula) return why;
    const auto lengths = plain_lengths(settings_);
    return std::find(lengths.begin(), lengths.end(), work.length) !=
                   lengths.end()
               ? ""
               : "it costs the same at every length (--plain all measures it "
                 "at each)";
  }

  double seconds_left() const {
    return settings_.budget -
           std::chrono::duration<double>(Clock::now() - start_).count();
  }

  /// Leaves out what would not end within the time budget.
  bool may_enter(const Case& c) {
    double seconds = 0;
    const auto last = last_.find({c.name, c.mode});
    if (last != last_.end()) {
      const double growth = static_cast<double>(c.work.length) /
                            static_cast<double>(last->second.length);
      seconds = last->second.seconds * (c.name == kReference ? growth : 1);
    } else if (c.name == kPlainFormula) {
      seconds = predict_plain(settings_, c.mode);
    }
    // The plain formula must leave time for what the others are about.
    const double limit = c.name == kPlainFormula
                             ? std::min(seconds_left(), settings_.budget / 3)
                             : seconds_left();
    if (seconds <= limit) return true;
    results_.skipped.push_back(
        {c.name, c.mode, c.work.length,
         fmt::format("the time budget of {:g} s", settings_.budget)});
    return false;
  }

  void after_run(const Case& c, int round, double seconds) {
    last_[{c.name, c.mode}] = {c.work.length, seconds};
    ++runs_done_;
    const double all =
        static_cast<double>(cases_.size()) * (settings_.repeat + 1);
    const double by_time = 1 - seconds_left() / settings_.budget;
    hooks_.progress({std::max(static_cast<double>(runs_done_) / all, by_time),
                     c.name, c.mode, c.work.length, round, seconds});
  }

  struct Last {
    std::int64_t length;
    double seconds;
  };

  Settings settings_;
  Hooks hooks_;
  Results results_;
  std::vector<Case> cases_;
  std::vector<Contestant> contestants_;
  std::map<std::pair<std::string, Mode>, Last> last_;
  std::size_t runs_done_ = 0;
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
    positive("lengths", n);
    if (!s.model.empty()) continue;  // which need not fill the tokens
    TORCH_CHECK_VALUE(n <= s.tokens && s.tokens % n == 0,
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
                    config::known_and_nearest(s.plain, plain), ", got ",
                    s.plain);
}

Results bench_attention(const Settings& settings, const Hooks& hooks) {
  check_settings(settings);
  return AttentionBench(settings, hooks).run();
}

}  // namespace luna::bench
