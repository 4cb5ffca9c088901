#include "train/run_log.h"

#include <algorithm>
#include <cmath>

#include "luna/train/schedule.h"

namespace luna::train {
namespace {

using Json = nlohmann::ordered_json;
using Phase = Progress::Phase;

Json judged_line(const char* kind, int64_t step, const Evaluation& e) {
  Json line = {{"kind", kind}, {"step", step}, {"loss", e.loss}};
  if (e.classes != 1) line["accuracy"] = e.accuracy;
  if (e.metric != "accuracy") line[e.metric] = e.score;
  if (e.metric == "pearson") line["spearman"] = e.spearman;
  return line;
}

}  // namespace

RunLog::RunLog(const std::string& path, const TrainConfig& config,
               const data::TaskInfo& task, const RunState& state,
               std::function<void(const Progress&)> watcher)
    : config_(config),
      scores_(task.classes == 1),
      state_(state),
      watcher_(std::move(watcher)),
      metrics_(path, state.metrics_bytes),
      watch_(state.seconds),
      logged_(state) {}

void RunLog::trained(int64_t step, int64_t tokens, const Means& means) {
  const double lr = learning_rate(config_.schedule, config_.optimizer.lr,
                                  config_.steps, step - 1);
  const double spent = state_.training_seconds - logged_.training_seconds;
  const auto steps = static_cast<double>(step - logged_.step);
  last_ = {.loss = means.loss,
           .accuracy = means.accuracy,
           .lr = lr,
           .tokens_per_s = static_cast<double>(tokens - logged_.tokens) / spent,
           .steps_per_s = steps / spent};
  Json json = {{"kind", "train"},
               {"step", step},
               {"loss", means.loss},
               {"accuracy", means.accuracy},
               {"lr", lr},
               {"tokens_per_s", last_.tokens_per_s},
               {"steps_per_s", last_.steps_per_s},
               {"seconds", state_.seconds}};
  if (scores_) json.erase("accuracy");
  metrics_.write(json);
  logged_ = state_;
  logged_.step = step;
  logged_.tokens = tokens;
  report(Phase::kLogged, step, nullptr);
}

void RunLog::skipped(int64_t step, int64_t count, Skips::Why why) {
  metrics_.write({{"kind", "skipped"},
                  {"step", step},
                  {"count", count},
                  {"why", describe(why)}});
}

void RunLog::stopped(int64_t step, Skips::Why why, const std::string& module,
                     const std::vector<int64_t>& batch) {
  metrics_.write({{"kind", "stopped"},
                  {"step", step},
                  {"why", describe(why)},
                  {"module", module},
                  {"batch", batch}});
}

void RunLog::features(int64_t step, std::vector<FeatureUse> uses) {
  const auto side = [](const FeatureUse::Side& of) {
    return Json{{"live", of.live}, {"silent", of.silent}};
  };
  // Four decimals: the report draws it.
  constexpr double kDigits = 1e4;
  for (FeatureUse& use : uses) {
    for (double& u : use.u) u = std::round(u * kDigits) / kDigits;
    metrics_.write({{"kind", "features"},
                    {"step", step},
                    {"map", use.map},
                    {"query", side(use.query)},
                    {"key", side(use.key)},
                    {"u", use.u}});
  }
}

void RunLog::validated(const Evaluation& result) {
  Json line = judged_line("validation", state_.step, result);
  line["seconds"] = state_.seconds;
  metrics_.write(line);
}

void RunLog::tested(int64_t step, const Evaluation& result) {
  metrics_.write(judged_line("test", step, result));
}

void RunLog::report(Phase phase, int64_t step, const Evaluation* judged) const {
  if (!watcher_) return;
  Progress progress = last_;
  progress.phase = phase;
  progress.step = step;
  progress.steps = config_.steps;
  progress.metric = scores_ ? "" : "accuracy";
  progress.score = last_.accuracy;
  if (judged != nullptr) {
    progress.loss = judged->loss;
    progress.accuracy = judged->accuracy;
    progress.metric = judged->metric;
    progress.score = judged->score;
  }
  progress.seconds = watch_.seconds();
  const double mean = state_.training_seconds /
                      static_cast<double>(std::max<int64_t>(1, state_.step));
  progress.seconds_left =
      mean * static_cast<double>(config_.steps - state_.step);
  watcher_(progress);
}

}  // namespace luna::train
