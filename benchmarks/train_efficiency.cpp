// Training steps a second and peak memory beside softmax, at 1K to 4K tokens,
// as in the nested paper's table:
//
//   luna_bench_train_efficiency SOFTMAX.json UNIVERSAL.json ...
//       [--lengths 1024,2048,3072,4096] [--batch 1] [--steps 5] [--rounds 3]
//       [--threads N] [--device cuda] [--autocast bf16] [--out FILE]
//
// Every measurement is a process of its own, so that its peak memory is its
// own; the configs take turns, so that a slow minute hits all of them. Steps
// are whole ones: forward, backward, clipping and update, on random ids of
// full length; on a GPU recorded ones, as `luna train` replays them. Figures
// are medians over the rounds; the first config is what the others are compared
// with. There its softmax makes the whole map of attention (LibTorch's "math"
// backend), which is what the papers compare with; a softmax among the others
// is LibTorch's best.

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/machine_json.h"
#include "luna/bench/memory.h"
#include "luna/data/memory_dataset.h"
#include "luna/data/tasks.h"
#include "luna/io/text_file.h"
#include "luna/report/table.h"
#include "luna/train/read_config.h"
#include "luna/version.h"
#include "train/device_steps.h"
#include "train/stopwatch.h"
#include "train/train_step.h"

namespace luna {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> configs{};
  std::vector<int64_t> lengths = {1024, 2048, 3072, 4096};
  int64_t batch = 1, steps = 5, rounds = 3;
  int threads = 0;
  std::string device = "cpu", autocast = "none";
  bool unfused = false;  ///< softmax by the "math" backend
  std::string out{};
  bool one = false;  ///< a child: one config, one length
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2;
}

data::Sequences random_sequences(int64_t batch, int64_t length,
                                 const data::TaskInfo& info) {
  data::Sequences s;
  s.ids = at::randint(info.vocabulary, {batch, length}, at::kLong);
  s.lengths = at::full({batch}, length, at::kLong);
  s.full = true;
  return s;
}

train::TrainConfig config_of(const Options& options) {
  train::TrainConfig config = train::read_train_config(options.configs.front());
  config.batch = options.batch;
  config.accumulate = 1;
  config.autocast = options.autocast;
  config.steps = options.steps + 1;
  config.model.max_positions = 0;
  return config;
}

/// Seconds of a step and bytes at the peak.
Json measure_on_cpu(const Options& options) {
  const train::TrainConfig config = config_of(options);
  const data::TaskInfo info = data::find_task(config.data.task).info;
  const int64_t length = options.lengths.front();
  at::manual_seed(1);
  // Before the model, so that the counting allocator sees its weights.
  const bench::MemoryMeter tensors;
  const bench::ResidentMeter resident;
  const auto model = models::make_model(config.model, info, length);
  train::TrainStep step(model, config);
  data::Batch batch{
      .first = random_sequences(options.batch, length, info),
      .labels = at::randint(info.classes, {options.batch}, at::kLong)};
  if (info.pairs) batch.second = random_sequences(options.batch, length, info);
  const std::vector<data::Batch> batches = {batch};
  step.run(0, batches);
  std::vector<double> seconds;
  for (int64_t i = 1; i <= options.steps; ++i) {
    const train::Stopwatch watch;
    step.run(i, batches);
    seconds.push_back(watch.seconds());
  }
  return {{"seconds", median(seconds)},
          {"tensor_bytes", tensors.peak()},
          {"resident_bytes", resident.peak()}};
}

/// As many random samples as a few steps see.
data::MemoryDataset random_samples(const Options& options, int64_t length,
                                   const data::TaskInfo& info) {
  const int64_t samples = 4 * options.batch, sides = info.pairs ? 2 : 1;
  const at::Tensor ids =
      at::randint(info.vocabulary, {samples * sides * length},
                  at::TensorOptions(at::kByte));
  const at::Tensor labels = at::randint(info.classes, {samples}, at::kLong);
  std::vector<int64_t> offsets;
  for (int64_t s = 0; s <= samples * sides; ++s) offsets.push_back(s * length);
  const auto* id = ids.const_data_ptr<uint8_t>();
  const auto* label = labels.const_data_ptr<int64_t>();
  return {info, {id, id + ids.numel()}, offsets, {label, label + samples}};
}

Json measure_on_device(const Options& options) {
  const train::TrainConfig config = config_of(options);
  const data::TaskInfo info = data::find_task(config.data.task).info;
  const int64_t length = options.lengths.front();
  if (options.unfused) {
    at::globalContext().setSDPUseFlash(false);
    at::globalContext().setSDPUseMemEfficient(false);
    at::globalContext().setSDPUseCuDNN(false);
  }
  at::manual_seed(1);
  const auto model = models::make_model(config.model, info, length);
  model->to(c10::Device(options.device));
  train::TrainStep step(model, config);
  train::NamedTensors changed = train::named_state(*model);
  const train::NamedTensors of_optimizer = step.state();
  changed.insert(changed.end(), of_optimizer.begin(), of_optimizer.end());
  const data::BatchOptions form{.cls = config.model.pooling == "cls",
                                .max_length = length};
  train::DeviceSteps steps(
      step, changed, random_samples(options, length, info), form, config,
      [](const std::string& why) { throw std::runtime_error(why); });
  steps.run(0);
  step.read().means();  // waits
  const train::Stopwatch watch;
  for (int64_t i = 1; i <= options.steps; ++i) steps.run(i);
  step.read().means();  // waits
  const double seconds = watch.seconds() / static_cast<double>(options.steps);
  const auto index = c10::Device(options.device).index();  // -1: the current
  const auto stats = at::accelerator::getDeviceStats(
      index >= 0 ? index : at::accelerator::getDeviceIndex());
  // Reserved: a recorded step's memory is not counted as allocated while it
  // is replayed.
  return {{"seconds", seconds},
          {"tensor_bytes", stats.reserved_bytes.front().peak},
          {"resident_bytes", -1}};
}

Json measure_one(const Options& options) {
  return c10::Device(options.device).is_cpu() ? measure_on_cpu(options)
                                              : measure_on_device(options);
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text)
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

Json in_a_process(const std::string& program, const Options& options,
                  const std::string& config, int64_t length) {
  const std::string command = fmt::format(
      "{} {} --one --lengths {} --batch {} --steps {} --threads {} "
      "--device {} --autocast {}{}",
      quoted(program), quoted(config), length, options.batch, options.steps,
      options.threads, options.device, options.autocast,
      options.unfused ? " --unfused" : "");
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
  std::string text;
  std::array<char, 4096> buffer{};
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), n);
  }
  if (pclose(pipe) != 0) throw std::runtime_error("failed: " + command);
  return Json::parse(text);
}

struct Figures {
  std::vector<double> seconds{}, tensor_bytes{}, resident_bytes{};
};

Json run_all(const std::string& program, const Options& options) {
  std::map<std::pair<int64_t, size_t>, Figures> figures;
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (const int64_t length : options.lengths) {
      for (size_t c = 0; c < options.configs.size(); ++c) {
        fmt::print(stderr, "round {}, {} tokens: {}\n", round + 1, length,
                   options.configs[c]);
        Options own = options;
        own.unfused = c == 0 && !c10::Device(options.device).is_cpu();
        const Json one = in_a_process(program, own, options.configs[c], length);
        Figures& f = figures[{length, c}];
        f.seconds.push_back(one["seconds"]);
        f.tensor_bytes.push_back(one["tensor_bytes"]);
        f.resident_bytes.push_back(one["resident_bytes"]);
      }
    }
  }
  const bench::Machine machine = bench::this_machine();
  Json rows = Json::array();
  for (const int64_t length : options.lengths) {
    const Figures& first = figures[{length, 0}];
    for (size_t c = 0; c < options.configs.size(); ++c) {
      const Figures& f = figures[{length, c}];
      const train::TrainConfig config =
          train::read_train_config(options.configs[c]);
      const double seconds = median(f.seconds);
      rows.push_back({{"config", options.configs[c]},
                      {"attention", config.model.attention},
                      {"memory_length", config.model.memory_length},
                      {"length", length},
                      {"seconds_per_step", seconds},
                      {"spread",
                       {*std::min_element(f.seconds.begin(), f.seconds.end()),
                        *std::max_element(f.seconds.begin(), f.seconds.end())}},
                      {"steps_per_s", 1 / seconds},
                      {"tensor_bytes", median(f.tensor_bytes)},
                      {"resident_bytes", median(f.resident_bytes)},
                      {"times_speed", median(first.seconds) / seconds},
                      {"times_memory",
                       median(f.tensor_bytes) / median(first.tensor_bytes)}});
    }
  }
  return {{"format", "luna-train-efficiency/1"},
          {"luna", machine.luna_version},
          {"commit", commit()},
          {"torch", machine.torch_version},
          {"machine", bench::machine_json(machine)},
          {"device", options.device},
          {"autocast", options.autocast},
          {"batch", options.batch},
          {"steps", options.steps},
          {"rounds", options.rounds},
          {"rows", rows}};
}

void print(const Json& results) {
  report::Table table({{"length", true},
                       {"attention", false},
                       {"steps/s", true},
                       {"speed", true},
                       {"memory", true}});
  int64_t last = -1;
  for (const Json& row : results["rows"]) {
    const int64_t length = row["length"];
    if (last >= 0 && length != last) table.start_group();
    last = length;
    table.add_row({std::to_string(length), row["attention"].get<std::string>(),
                   fmt::format("{:.2f}", row["steps_per_s"].get<double>()),
                   fmt::format("{:.2f}×", row["times_speed"].get<double>()),
                   fmt::format("{:.2f}×", row["times_memory"].get<double>())});
  }
  fmt::print("{}", table.text());
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Training speed and memory beside the first config");
  app.add_option("configs", options.configs,
                 "Configs; the first is compared "
                 "with")
      ->required();
  app.add_option("--lengths", options.lengths, "Tokens")->delimiter(',');
  app.add_option("--batch", options.batch, "Samples in a step");
  app.add_option("--steps", options.steps, "Steps of a measurement");
  app.add_option("--rounds", options.rounds, "Measurements of each");
  app.add_option("--threads", options.threads, "Threads; 0: all");
  app.add_option("--device", options.device, "cpu or cuda");
  app.add_option("--autocast", options.autocast, "none or bf16");
  app.add_flag("--unfused", options.unfused, "With --one: whole maps");
  app.add_option("--out", options.out, "Save the results as JSON");
  app.add_flag("--one", options.one, "One measurement, in this process");
  CLI11_PARSE(app, argc, argv);
  if (options.threads > 0) at::set_num_threads(options.threads);
  if (options.one) {
    fmt::print("{}\n", measure_one(options).dump());
    return 0;
  }
  const Json results = run_all(argv[0], options);
  print(results);
  if (!options.out.empty()) {
    io::write_text(options.out, results.dump(2) + "\n");
  }
  return 0;
}

}  // namespace
}  // namespace luna

int main(int argc, char** argv) {
  try {
    return luna::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
