#include "train/checkpoint.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/ConstexprCrc.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "config/json.h"
#include "luna/io/atomic.h"
#include "luna/io/memory_map.h"
#include "luna/io/safetensors.h"
#include "luna/io/text_file.h"

namespace luna::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "state.json";

std::string checksum(const char* data, size_t size) {
  return fmt::format("{:016x}", c10::util::crc64(data, size).checksum());
}

std::string checksum(const std::string& text) {
  return checksum(text.data(), text.size());
}

Json fingerprint(const std::string& path) {
  const auto file = io::MemoryMap::open(path);
  const auto* const data = reinterpret_cast<const char*>(file->data());
  return {{"bytes", file->size()}, {"crc64", checksum(data, file->size())}};
}

bool is_feature_map(const std::string& name) {
  static const char* const kEndings[] = {"projection",    "projection_bias",
                                         "hidden_weight", "hidden_bias",
                                         "output_weight", "output_bias"};
  const std::string last = name.substr(name.rfind('.') + 1);
  return std::find(std::begin(kEndings), std::end(kEndings), last) !=
         std::end(kEndings);
}

/// Whether a mean of checkpoints takes it: what an interruption saves in
/// between must not change the result.
bool is_averaged(const TrainConfig& config, int64_t step) {
  return step % config.checkpoint_every == 0 || step == config.steps;
}

void check_finite(const std::string& folder, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(
        !tensor.is_floating_point() || tensor.isfinite().all().item<bool>(),
        folder, ": not saved: expected finite numbers, got others in ", name);
  }
}

/// Writes the file, reads it back, compares.
void write_checked(const std::string& path, const NamedTensors& tensors) {
  io::write_safetensors(path, tensors);
  const io::Safetensors file = io::Safetensors::open(path);
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(at::equal(file.tensor(name), tensor.cpu()), path,
                ": expected to read what was written, got other numbers in ",
                name);
  }
}

/// The same text, with the checksum of all that stands before it.
std::string sealed(Json json) {
  json["crc64"] = checksum(json.dump());
  return json.dump(2) + "\n";
}

Json unsealed(const std::string& path) {
  Json json = config::parse_json(io::read_text(path), path);
  TORCH_CHECK_VALUE(json.is_object() && json.contains("crc64"), path,
                    ": expected an object with the key crc64, got none");
  const Json stated = json["crc64"];
  json.erase("crc64");
  TORCH_CHECK_VALUE(stated == checksum(json.dump()), path,
                    ": expected the checksum ", stated.dump(), ", got ",
                    checksum(json.dump()), ": the file was changed");
  return json;
}

}  // namespace

void load_tensors(const std::string& path, const NamedTensors& tensors) {
  const c10::NoGradGuard no_grad;
  const io::Safetensors file = io::Safetensors::open(path);
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(file.contains(name), path, ": expected the tensor ", name,
                      ", got none of that name");
    const io::TensorEntry& entry = file.entry(name);
    TORCH_CHECK_VALUE(tensor.sizes() == at::IntArrayRef(entry.sizes) &&
                          tensor.scalar_type() == entry.dtype,
                      path, ": expected ", name, " to be ",
                      tensor.scalar_type(), " ", tensor.sizes(), ", got ",
                      entry.dtype, " ", at::IntArrayRef(entry.sizes));
  }
  TORCH_CHECK_VALUE(file.entries().size() == tensors.size(), path,
                    ": expected ", tensors.size(), " tensors, got ",
                    file.entries().size());
  for (const auto& [name, tensor] : tensors) {
    tensor.copy_(file.tensor(name));
  }
}

void save_checkpoint(const std::string& folder, const RunTensors& tensors,
                     const RunState& state) {
  check_finite(folder, tensors.model);
  check_finite(folder, tensors.optimizer);
  io::AtomicFolder made(folder);
  write_checked(made.file(kModel), tensors.model);
  write_checked(made.file(kOptimizer), tensors.optimizer);
  Json json = config::write_json(state);
  json["files"] = {{kModel, fingerprint(made.file(kModel))},
                   {kOptimizer, fingerprint(made.file(kOptimizer))}};
  io::write_text(made.file(kState), sealed(json));
  made.commit();
}

RunState load_checkpoint(const std::string& folder, const RunTensors& tensors) {
  const std::string path = folder + "/" + kState;
  Json json = unsealed(path);
  TORCH_CHECK_VALUE(json.contains("files"), path,
                    ": expected the key files, got none");
  for (const char* name : {kModel, kOptimizer}) {
    const std::string file = folder + "/" + name;
    const Json expected = json["files"].value(name, Json());
    const Json found = fingerprint(file);
    TORCH_CHECK_VALUE(found == expected, file, ": expected ", expected.dump(),
                      " (", kState, "), got ", found.dump(),
                      ": the file is cut short or was changed");
  }
  json.erase("files");
  const RunState state = config::read_json<RunState>(path, json);
  load_tensors(folder + "/" + kModel, tensors.model);
  load_tensors(folder + "/" + kOptimizer, tensors.optimizer);
  return state;
}

std::optional<RunState> load_latest(
    const RunFolder& run, const RunTensors& tensors,
    const std::function<void(const std::string&)>& warn) {
  std::string last_error;
  for (const int64_t step : run.steps()) {
    try {
      return load_checkpoint(run.checkpoint(step), tensors);
    } catch (const c10::Error& error) {
      last_error = error.what_without_backtrace();
      warn(last_error);
    }
  }
  TORCH_CHECK(last_error.empty(), run.checkpoints(),
              ": expected a checkpoint that can be read, got none; the last "
              "error: ",
              last_error, "; remove the folder to start the run again");
  return std::nullopt;
}

void remove_old_checkpoints(const RunFolder& run, int64_t last,
                            const TrainConfig& config) {
  int64_t keep = config.keep_checkpoints;
  for (const int64_t step : run.steps()) {
    const bool counts = config.average == 0 || is_averaged(config, step);
    if (step > last || (step == last && !counts)) continue;
    if (!counts || keep-- <= 0) io::remove_folder(run.checkpoint(step));
  }
}

std::vector<int64_t> averaged_steps(const RunFolder& run, int64_t last,
                                    const TrainConfig& config) {
  std::vector<int64_t> steps = run.steps();
  std::erase_if(steps,
                [&](int64_t step) { return !is_averaged(config, step); });
  if (steps.empty()) steps = {last};  // it ended before the first
  if (std::ssize(steps) > config.average) steps.resize(config.average);
  return steps;
}

void save_start(const RunFolder& run, const NamedTensors& model) {
  NamedTensors chosen;
  for (const auto& [name, tensor] : model) {
    if (is_feature_map(name)) chosen.emplace_back(name, tensor);
  }
  io::write_safetensors(run.start(), chosen);
}

void save_best(const RunFolder& run, const NamedTensors& model,
               const TrainConfig& config, const Best& best) {
  check_finite(run.best(), model);
  io::AtomicFolder made(run.best());
  write_checked(made.file(kModel), model);
  io::write_text(made.file("config.json"), config_text(config));
  io::write_text(made.file(kState), sealed(config::write_json(best)));
  made.commit();
}

void save_average(const RunFolder& run, const std::vector<int64_t>& steps,
                  const NamedTensors& model, const TrainConfig& config) {
  const c10::NoGradGuard no_grad;
  TORCH_CHECK(!steps.empty(), run.checkpoints(),
              ": expected a checkpoint to average, got none");
  NamedTensors sums, mean, one;
  for (const auto& [name, tensor] : model) {
    sums.emplace_back(name, at::zeros_like(tensor, at::kDouble));
    one.emplace_back(name, at::empty_like(tensor));
  }
  for (const int64_t step : steps) {
    load_tensors(run.checkpoint(step) + "/" + kModel, one);
    for (size_t i = 0; i < sums.size(); ++i) sums[i].second += one[i].second;
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    mean.emplace_back(sums[i].first, sums[i]
                                         .second.div(std::ssize(steps))
                                         .to(model[i].second.scalar_type()));
  }
  check_finite(run.averaged(), mean);
  io::AtomicFolder made(run.averaged());
  write_checked(made.file(kModel), mean);
  io::write_text(made.file("config.json"), config_text(config));
  io::write_text(made.file(kState), sealed({{"steps", steps}}));
  made.commit();
}

Best read_best(const RunFolder& run) {
  const std::string path = run.best() + "/" + kState;
  return config::read_json<Best>(path, unsealed(path));
}

}  // namespace luna::train
