#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace luna::train {

/// metrics.jsonl: one JSON object a line, each written at once.
class MetricsLog {
 public:
  /// Opens the file and forgets what lies beyond `bytes`: lines that a killed
  /// run wrote after the checkpoint from which it goes on. A file that is
  /// shorter than that is an error.
  MetricsLog(const std::string& path, int64_t bytes);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void write(const nlohmann::ordered_json& line);
  /// On disk, so that a checkpoint may refer to it.
  void sync();
  int64_t bytes() const { return bytes_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_;
};

}  // namespace luna::train
