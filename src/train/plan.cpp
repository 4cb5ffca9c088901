#include "luna/train/plan.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "luna/bench/memory.h"
#include "luna/data/translation.h"
#include "luna/train/run_model.h"
#include "luna/train/schedule.h"
#include "train/train_step.h"

namespace luna::train {
namespace {

data::Sequences random_sequences(int64_t batch, int64_t length,
                                 const data::TaskInfo& info) {
  return {.ids = at::randint(info.vocabulary, {batch, length}, at::kLong),
          .lengths = at::full({batch}, length, at::kLong)};
}

int64_t step_bytes(TrainStep& step, const Plan& plan,
                   const data::TaskInfo& info, int64_t samples) {
  const int64_t labels =
      info.task == data::kTranslationTask ? samples * plan.length : samples;
  data::Batch batch{.first = random_sequences(samples, plan.length, info),
                    .labels = at::zeros({labels}, at::kLong),
                    .padded_labels = labels != samples};
  if (info.pairs) batch.second = random_sequences(samples, plan.length, info);
  const bench::MemoryMeter meter;
  step.accumulate(0, 0, batch);
  return meter.peak();
}

std::vector<Plan::Rate> rates(const TrainConfig& config) {
  std::vector<int64_t> steps = {0, config.schedule.warmup, config.steps - 1};
  for (int64_t quarter = 1; quarter < 4; ++quarter) {
    steps.push_back(quarter * config.steps / 4);
  }
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  std::vector<Plan::Rate> rates;
  for (const int64_t step : steps) {
    if (step >= config.steps) continue;
    rates.push_back({step, learning_rate(config.schedule, config.optimizer.lr,
                                         config.steps, step)});
  }
  return rates;
}

}  // namespace

Plan make_plan(const TrainConfig& config, const data::TaskFacts& facts) {
  const int64_t longest = config.data.max_length > 0
                              ? std::min(facts.longest, config.data.max_length)
                              : facts.longest;
  const auto model = make_run_model(config.model, facts.info, longest);
  Plan plan;
  plan.parameters = models::count_parameters(*model);
  plan.length = longest + (model->batch_options().cls ? 1 : 0);
  int64_t batch = config.batch;
  const bool translates = facts.info.task == data::kTranslationTask;
  if (translates) {
    // As many of the longest, which take the most.
    plan.length = data::bucket_length(longest + 1);
    batch = std::max<int64_t>(1, config.translation.batch_tokens / plan.length);
  }
  const int64_t samples = batch * config.accumulate;
  if (!translates) plan.epoch = (facts.samples[0] + samples - 1) / samples;
  plan.fixed_bytes = 4 * 4 * plan.parameters.total();
  TrainStep step(model, config);
  const int64_t one = step_bytes(step, plan, facts.info, 1);
  const int64_t two = step_bytes(step, plan, facts.info, 2);
  plan.step_bytes = one + (two - one) * (batch - 1);
  plan.schedule = rates(config);
  return plan;
}

}  // namespace luna::train
