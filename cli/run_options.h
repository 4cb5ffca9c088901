// What train and eval both ask for: device, threads, data.
#pragma once

#include <c10/core/Device.h>
#include <luna/data/splits.h>
#include <luna/train/train_config.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "interrupt.h"

namespace luna::cli {

struct RunOptions {
  std::string data{};
  std::string device = "cpu";
  int threads = 0;
  bool json = false;
};

void add_run_options(CLI::App& app, RunOptions& options);

/// The config in a file with --set's assignments put over it. UsageError if
/// those are what is wrong.
train::TrainConfig read_config_or_usage(const std::string& path,
                                        const std::vector<std::string>& set);

/// Calls `read`; what it throws about an option ("--set ...") becomes a
/// UsageError.
void or_usage(const std::function<void()>& read);

/// Sets the threads; gives the device, if it is there.
c10::Device settle_device(const RunOptions& options);

/// "luna train: warning: ..." on stderr.
void warn(const std::string& command, const std::string& text);

/// The run's data, with progress; what is generated goes to `fallback`. Warns
/// if it is less than the config asks for.
data::Splits open_run_data(const std::string& command,
                           const train::TrainConfig& config,
                           const std::string& fallback);

/// Calls a command's function; says so and gives kInterrupted if that throws
/// Interrupted.
int unless_interrupted(const std::string& command,
                       const std::function<int()>& run);

/// 75 -> "1:15", 3700 -> "1:01:40".
std::string clock_time(double seconds);

/// 0.8312 -> "83.1 %".
std::string per_cent(double share);

/// A metric as it is usually written: "accuracy 83.1 %", "bleu 38.27",
/// "f1 0.8312".
std::string score_text(const std::string& metric, double score);

}  // namespace luna::cli
