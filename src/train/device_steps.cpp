#include "train/device_steps.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "train/packing.h"

namespace luna::train {
namespace {

/// Below this share of the longest, sequences of mean length are packed.
constexpr double kMuchPadding = 0.8;

int64_t round_up(int64_t x, int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

/// Few sizes, so that there are few graphs; small steps, so that there is
/// little filler. Where a step has many sizes, as many as its parts and sides,
/// their combinations must be few.
int64_t granule_of(const TrainConfig& config, const DeviceData& data) {
  constexpr int64_t kLeast = 2048, kUnit = 128;
  // Three standard deviations on either side are cut into 12.
  constexpr double kShare = 6.0 / 12;
  const double spread =
      data.spread_of_tokens() * std::sqrt(static_cast<double>(config.batch));
  const auto step = static_cast<int64_t>(spread * kShare);
  return std::max(kLeast, round_up(step, kUnit)) * config.accumulate *
         data.sides();
}

}  // namespace

DeviceSteps::DeviceSteps(TrainStep& step, NamedTensors changed,
                         const data::Dataset& data,
                         const data::BatchOptions& form,
                         const TrainConfig& config,
                         std::function<void(const std::string&)> warn)
    : step_(step),
      changed_(std::move(changed)),
      config_(config),
      warn_(std::move(warn)),
      data_(data, form, step.device(), keeps_black(config)),
      table_(config, data_, step.device()),
      records_(step.device().is_cuda()) {}

void DeviceSteps::choose_packing(const models::Model& model) {
  std::string refused = model.refuses_packed();
  if (refused.empty()) refused = data_.refuses_packed();
  const bool much_padding =
      data_.mean_tokens() < kMuchPadding * static_cast<double>(data_.longest());
  if (train::packs(config_, step_.device(), refused, much_padding)) {
    granule_ = granule_of(config_, data_);
  }
}

DeviceSteps::Sizes DeviceSteps::sizes() const {
  if (!packs()) return {};
  Sizes sizes;
  for (const int64_t tokens : table_.part_tokens()) {
    sizes.push_back(round_up(std::max<int64_t>(tokens, 1), granule_));
  }
  return sizes;
}

data::Batch DeviceSteps::batch_of(int64_t part, const Sizes& sizes) const {
  const at::Tensor indices = table_.indices(part);
  if (!sizes.empty() && data_.leaves_out_black()) {
    return data_.gather_seen(indices, {sizes[part], granule_});
  }
  if (!sizes.empty()) {
    const auto of_part =
        std::span(sizes).subspan(part * data_.sides(), data_.sides());
    return data_.gather_packed(indices, of_part, granule_);
  }
  data::Batch batch =
      data_.gather(indices, data_.longest(), table_.moves(part));
  batch.blends = table_.blends(part);
  return batch;
}

void DeviceSteps::compute(const Sizes& sizes) {
  step_.compute([&](int64_t part) { return batch_of(part, sizes); },
                table_.lr());
  table_.advance();
}

/// What a step sets up when it first runs (handles, workspaces, kernels) must
/// be there before it is recorded: one step is done and taken back.
void DeviceSteps::record(int64_t step, const Sizes& sizes) {
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : changed_) before.push_back(tensor.clone());
  step_.seed(step);
  compute(sizes);
  {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < changed_.size(); ++i) {
      changed_[i].second.copy_(before[i]);
    }
  }
  try {
    graphs_[sizes] =
        ops::capture_graph(step_.device(), [&] { compute(sizes); });
  } catch (const c10::Error& error) {
    records_ = false;
    warn_(std::string("steps are not recorded as a CUDA graph, which makes "
                      "them slower: ") +
          error.what_without_backtrace());
  }
  table_.turn_to(step);
}

int64_t DeviceSteps::run(int64_t step) {
  const int64_t tokens = table_.turn_to(step);
  const Sizes sizes = this->sizes();
  if (records_ && !graphs_.contains(sizes)) record(step, sizes);
  step_.seed(step);
  const auto graph = graphs_.find(sizes);
  if (graph != graphs_.end()) {
    graph->second->replay();
  } else {
    compute(sizes);
  }
  return tokens;
}

}  // namespace luna::train
