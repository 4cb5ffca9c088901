#include "train/tiny.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <luna/data/memory_dataset.h>
#include <luna/io/text_file.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "ops/lookup.h"

namespace luna::testing {
namespace {

struct TinyLinear : torch::nn::Module {
  TinyLinear(int64_t in, int64_t out)
      : weight(register_parameter("weight", at::randn({out, in}) * 0.3)),
        bias(register_parameter("bias", at::zeros({out}))) {}
  at::Tensor weight, bias;
};

at::Tensor affine(const std::shared_ptr<torch::nn::Module>& module,
                  const at::Tensor& x) {
  const auto& layer = dynamic_cast<const TinyLinear&>(*module);
  return at::linear(x, layer.weight, layer.bias);
}

/// A folder of this process alone, gone when it ends.
struct Root {
  Root() {
    // In memory where that is to be had: hundreds of runs sync their files.
    const std::filesystem::path memory = "/dev/shm";
    path = (std::filesystem::is_directory(memory)
                ? memory
                : std::filesystem::temp_directory_path()) /
           ("luna-train-" + std::to_string(getpid()));
    std::filesystem::create_directories(path);
  }
  ~Root() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

}  // namespace

std::shared_ptr<data::Dataset> tiny_data(int64_t samples, uint64_t seed) {
  auto data = std::make_shared<data::MemoryDataset>(
      data::TaskInfo{.task = "tiny", .vocabulary = 8, .classes = 2});
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < samples; ++i) {
    std::vector<uint8_t> ids(3 + random() % 4);
    const uint64_t label = random() % 2;
    for (uint8_t& id : ids) id = static_cast<uint8_t>(4 * label + random() % 4);
    data->add({.ids = ids, .label = static_cast<int64_t>(label)});
  }
  return data;
}

train::Splits tiny_splits() {
  return {tiny_data(50, 1), tiny_data(20, 2), tiny_data(30, 3)};
}

TinyModel::TinyModel(double dropout)
    : dropout_(dropout),
      table_(register_parameter("table", at::randn({10, 6}))),
      hidden_(register_module("hidden", std::make_shared<TinyLinear>(6, 6))),
      head_(register_module("head", std::make_shared<TinyLinear>(6, 2))) {}

at::Tensor TinyModel::forward(const data::Batch& batch) {
  const at::Tensor &ids = batch.first.ids, &lengths = batch.first.lengths;
  const at::Tensor place = at::arange(ids.size(1), lengths.options());
  at::Tensor x = ops::lookup(table_, ids);
  if (batch.first.packed) {
    const at::Tensor& starts = batch.first.packed->starts;
    const at::Tensor begin = starts.narrow(0, 0, lengths.size(0)).unsqueeze(1),
                     end = starts.narrow(0, 1, lengths.size(0)).unsqueeze(1);
    x = place.ge(begin).logical_and(place.lt(end)).to(x.scalar_type()).mm(x[0]);
  } else {
    x = (x * place.lt(lengths.unsqueeze(1)).unsqueeze(2)).sum(1);
  }
  x = x / lengths.unsqueeze(1);
  x = affine(hidden_, at::dropout(x, dropout_, is_training()));
  if (disturb && is_training()) x = disturb(x);
  return affine(head_, x.tanh());
}

train::TrainConfig tiny_config() {
  train::TrainConfig config{.name = "tiny"};
  config.optimizer.lr = 0.05;
  config.schedule.warmup = 2;
  config.steps = 12;
  config.batch = 4;
  config.accumulate = 2;
  config.clip = 1.0;
  config.label_smoothing = 0.1;
  config.log_every = 2;
  config.eval_every = 4;
  config.checkpoint_every = 3;
  return config;
}

train::TrainOptions tiny_options(const std::string& folder) {
  return {.folder = folder,
          .make_model = [] { return std::make_shared<TinyModel>(); }};
}

std::string fresh_folder(const std::string& name) {
  static const Root root;
  const auto path = root.path / name;
  std::filesystem::remove_all(path);
  return path.string();
}

std::string metrics_without_times(const std::string& folder) {
  std::istringstream lines(bytes_of(folder + "/metrics.jsonl"));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    auto json = nlohmann::ordered_json::parse(line);
    for (const char* key : {"tokens_per_s", "steps_per_s", "seconds"}) {
      json.erase(key);
    }
    kept += json.dump() + "\n";
  }
  return kept;
}

std::string bytes_of(const std::string& path) { return io::read_text(path); }

}  // namespace luna::testing
