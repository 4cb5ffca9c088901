#pragma once

#include <luna/train/optimizer.h>
#include <luna/train/run_folder.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace luna::train {

/// The tensors of a run, as views: saved from and loaded into.
struct RunTensors {
  NamedTensors model{};      ///< parameters and buffers
  NamedTensors optimizer{};  ///< moments, counts, meters
};

/// Writes model.safetensors, optimizer.safetensors and state.json (with the
/// sizes and checksums of all three) as one atomic folder, after reading them
/// back and comparing them with what is in memory. A number that is not
/// finite is refused: then nothing is written.
void save_checkpoint(const std::string& folder, const RunTensors& tensors,
                     const RunState& state);

/// Reads a folder that save_checkpoint wrote into `tensors`; nothing is
/// changed if a byte of it is missing or wrong: the error names the file.
RunState load_checkpoint(const std::string& folder, const RunTensors& tensors);

/// Loads the latest checkpoint that is whole. `warn` is told why a later one
/// is not. Nothing if there is none at all; an error if none is whole.
std::optional<RunState> load_latest(
    const RunFolder& run, const RunTensors& tensors,
    const std::function<void(const std::string&)>& warn);

/// Removes all but the latest of the checkpoints up to `last`, as many as
/// `config` keeps. Where it averages, those that it would not take stay only
/// while they are the latest.
void remove_old_checkpoints(const RunFolder& run, int64_t last,
                            const TrainConfig& config);

/// The checkpoints whose mean `config` asks for, latest first; `last` if there
/// is none of them.
std::vector<int64_t> averaged_steps(const RunFolder& run, int64_t last,
                                    const TrainConfig& config);

/// start.safetensors: the feature maps of a model that has learnt nothing.
void save_start(const RunFolder& run, const NamedTensors& model);

/// best/: the weights alone, config.json, and which validation they had.
void save_best(const RunFolder& run, const NamedTensors& model,
               const TrainConfig& config, const Best& best);
Best read_best(const RunFolder& run);

/// averaged/: the mean of the weights of checkpoints, config.json, and which
/// steps they were of.
void save_average(const RunFolder& run, const std::vector<int64_t>& steps,
                  const NamedTensors& model, const TrainConfig& config);

/// Copies the tensors of a file into those of the same names; the file must
/// have all of them and no others, of the same sizes and types.
void load_tensors(const std::string& path, const NamedTensors& tensors);

}  // namespace luna::train
