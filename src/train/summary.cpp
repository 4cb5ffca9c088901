#include "train/summary.h"

#include <ATen/DeviceAccelerator.h>

#include "bench/machine_json.h"
#include "luna/bench/memory.h"
#include "luna/data/translation.h"
#include "luna/models/parameter_counts.h"
#include "luna/nn/attention_registry.h"
#include "luna/version.h"

namespace luna::train {
namespace {

using Json = nlohmann::ordered_json;

/// "universal"; "nested-16" for a memory of 16 rows.
std::string attention_title(const models::ModelConfig& model) {
  return nn::find_attention(model.attention).traits.memory
             ? model.attention + "-" + std::to_string(model.memory_length)
             : model.attention;
}

/// Of the device; on the CPU, of the process.
int64_t peak_memory(const std::string& device) {
  const c10::Device d(device);
  if (d.is_cpu()) return bench::peak_resident_bytes();
  const auto stats = at::accelerator::getDeviceStats(d.index());
  return stats.allocated_bytes.front().peak;
}

}  // namespace

Json summary_json(const TrainConfig& config, const RunState& state,
                  const models::Model& model, const Splits& splits,
                  const std::optional<Evaluation>& test) {
  const models::ParameterCounts parameters = models::count_parameters(model);
  const bench::Machine machine = bench::this_machine();
  const double seconds = state.training_seconds;
  Json json = {
      {"name", config.name},
      {"finished", test.has_value()},
      {"task", splits.train->info().task},
      {"attention", config.model.attention},
      {"attention_title", attention_title(config.model)},
      {"seed", config.seed},
      {"parameters", parameters.total()},
      {"attention_parameters", parameters.own()},
      {"samples",
       {{"train", splits.train->size()},
        {"validation", splits.validation->size()},
        {"test", splits.test->size()}}},
      {"steps", state.step},
      {"skipped", state.skipped},
      {"best_step", state.best.step},
      {"validation_accuracy", state.best.accuracy},
      {"steps_per_s", seconds > 0 ? state.step / seconds : 0.0},
      {"tokens_per_s", seconds > 0 ? state.tokens / seconds : 0.0},
      {"peak_memory_bytes", peak_memory(state.device)},
      {"load_share", seconds > 0 ? state.waiting_seconds / seconds : 0.0},
      {"seconds", state.seconds},
      {"length", longest_sequence(splits, config.data.max_length)},
      {"batch", config.batch * config.accumulate},
      {"device", state.device},
      {"machine", bench::machine_json(machine)},
      {"luna", machine.luna_version},
      {"torch", machine.torch_version}};
  if (*commit() != '\0') json["commit"] = commit();
  if (state.side_by_side > 0) json["side_by_side"] = state.side_by_side;
  const std::string& metric = splits.train->info().metric;
  if (metric != "accuracy") json["validation_" + metric] = state.best.score;
  if (data::as_translation(*splits.train) != nullptr) {
    json["batch_tokens"] = config.translation.batch_tokens * config.accumulate;
  }
  if (test) {
    json["test_accuracy"] = test->accuracy;
    json["test_loss"] = test->loss;
    if (test->metric != "accuracy") json["test_" + test->metric] = test->score;
    if (test->metric == "pearson") json["test_spearman"] = test->spearman;
    json["test_samples"] = test->samples;
  }
  if (splits.train->info().classes == 1) {
    json.erase("validation_accuracy");
    json.erase("test_accuracy");
  }
  return json;
}

}  // namespace luna::train
