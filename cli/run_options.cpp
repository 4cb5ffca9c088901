#include "run_options.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cmath>

#include "command.h"
#include "interrupt.h"
#include "luna/train/open_data.h"
#include "luna/train/read_config.h"
#include "progress.h"

namespace luna::cli {

void add_run_options(CLI::App& app, RunOptions& options) {
  app.add_option("--data", options.data,
                 "Folder of the data: packed, or the task's own files; what "
                 "is generated is packed there")
      ->type_name("DIR");
  app.add_option("--device", options.device, "cpu or cuda (cpu)");
  app.add_option("--threads", options.threads, "Threads (all)");
  app.add_flag("--json", options.json, "JSON on stdout instead of text");
}

void or_usage(const std::function<void()>& read) {
  try {
    read();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (message.starts_with("--")) throw UsageError(message);
    throw;
  }
}

train::TrainConfig read_config_or_usage(const std::string& path,
                                        const std::vector<std::string>& set) {
  train::TrainConfig config;
  or_usage([&] { config = train::read_train_config(path, set); });
  return config;
}

c10::Device settle_device(const RunOptions& options) {
  if (options.threads < 0) {
    throw UsageError(
        fmt::format("--threads: expected 1 or more, got {}", options.threads));
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  if (options.device == "cpu") return c10::Device(c10::kCPU);
  if (options.device.starts_with("cuda")) {
    if (!at::globalContext().hasCUDA()) {
      throw UsageError(fmt::format(
          "--device: expected a device of this machine, got {}: no CUDA device "
          "was found",
          options.device));
    }
    at::globalContext().lazyInitDevice(c10::kCUDA);
    const c10::Device device(options.device);
    return device.has_index() ? device : c10::Device(c10::kCUDA, 0);
  }
  throw UsageError(fmt::format("--device: expected cpu, cuda or cuda:N, got {}",
                               options.device));
}

void warn(const std::string& command, const std::string& text) {
  fmt::print(stderr, "luna {}: warning: {}\n", command, text);
}

data::Splits open_run_data(const std::string& command,
                           const train::TrainConfig& config,
                           const std::string& fallback) {
  data::Splits splits;
  {
    Progress progress;
    std::string last;
    splits = train::open_data(config, fallback,
                              [&](double share, const std::string& what) {
                                if (interrupted()) throw Interrupted();
                                if (what != last) progress.log(what);
                                last = what;
                                progress.update(share, what);
                              });
  }
  const std::string less = train::shortfall(config.data, train::sizes(splits));
  if (!less.empty()) warn(command, less);
  return splits;
}

int unless_interrupted(const std::string& command,
                       const std::function<int()>& run) {
  try {
    return run();
  } catch (const Interrupted&) {
    fmt::print(stderr, "luna {}: interrupted; nothing was saved\n", command);
    return kInterrupted;
  }
}

std::string clock_time(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string per_cent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string score_text(const std::string& metric, double score) {
  const std::string value = metric == "accuracy" ? per_cent(score)
                            : metric == "bleu"   ? fmt::format("{:.2f}", score)
                                                 : fmt::format("{:.4f}", score);
  return metric + " " + value;
}

}  // namespace luna::cli
