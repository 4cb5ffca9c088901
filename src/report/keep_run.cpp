#include "luna/report/keep_run.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <sstream>
#include <vector>

#include "luna/io/atomic.h"
#include "luna/io/safetensors.h"
#include "luna/io/text_file.h"
#include "luna/report/run.h"
#include "report/json_fields.h"

namespace luna::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kTrainLines = 100;

/// What can be read of metrics.jsonl, the lines of training thinned evenly up
/// to the last one.
std::string thinned(const std::string& metrics) {
  std::vector<std::pair<std::string, bool>> lines;  // and: of training?
  size_t of_training = 0;
  std::istringstream in(metrics);
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;  // torn
    const bool train = text_of(json, "kind") == "train";
    of_training += train ? 1 : 0;
    lines.emplace_back(std::move(line), train);
  }
  const size_t every = (of_training + kTrainLines - 1) / kTrainLines;
  std::string kept;
  for (const auto& [line, train] : lines) {
    if (train && --of_training % every != 0) continue;
    kept += line + "\n";
  }
  return kept;
}

/// A config that names folders of this machine by their last name alone.
std::string without_folders(const std::string& config) {
  Json json = Json::parse(config, nullptr, false);
  if (!json.is_object() || !json.contains("data")) return config;
  fs::path path = text_of(json["data"], "path").value_or("");
  if (!path.is_absolute()) return config;
  if (!path.has_filename()) path = path.parent_path();
  json["data"]["path"] = path.filename().string();
  return json.dump(2) + "\n";
}

void keep_feature_maps(const std::string& from, const std::string& to) {
  const auto weights = io::Safetensors::open(from);
  io::NamedTensors maps;
  for (const io::TensorEntry& entry : weights.entries()) {
    if (entry.name.find(".feature_map.") == std::string::npos) continue;
    maps.emplace_back(entry.name, weights.tensor(entry.name));
  }
  if (maps.empty()) return;
  io::make_folders_above(to);
  io::write_safetensors(to, maps);
}

}  // namespace

void check_keep(const std::string& folder, const std::string& out) {
  const fs::path to = fs::weakly_canonical(out);
  for (fs::path above = fs::weakly_canonical(folder);;
       above = above.parent_path()) {
    TORCH_CHECK_VALUE(above != to, out,
                      ": expected a folder that does not hold the run, got ",
                      folder, " in it");
    if (above == above.parent_path()) break;
  }
  for (const char* name : {"checkpoints", "samples.json"}) {
    TORCH_CHECK_VALUE(!fs::exists(to / name), out,
                      ": expected no run but a kept one, got one with ", name,
                      ", which would be lost");
  }
}

void keep_run(const std::string& folder, const std::string& out) {
  TORCH_CHECK_VALUE(is_run_folder(folder), folder,
                    ": expected a run folder of luna train");
  check_keep(folder, out);
  std::error_code error;
  io::make_folders_above(out);
  io::AtomicFolder kept(out);
  const fs::path from = folder;
  const auto copy = [&](const std::string& name) {
    if (!fs::is_regular_file(from / name, error)) return;
    const std::string to = kept.file(name);
    io::make_folders_above(to);
    io::write_text(to, io::read_text((from / name).string()));
  };
  for (const char* name : {"summary.json", "translation.json"}) copy(name);
  if (fs::is_regular_file(from / "config.json", error)) {
    io::write_text(
        kept.file("config.json"),
        without_folders(io::read_text((from / "config.json").string())));
  }
  for (const auto& entry : fs::directory_iterator(from / "scores", error)) {
    copy("scores/" + entry.path().filename().string());
  }
  if (fs::exists(from / "metrics.jsonl")) {
    io::write_text(kept.file("metrics.jsonl"),
                   thinned(io::read_text((from / "metrics.jsonl").string())));
  }
  if (fs::exists(from / "start.safetensors")) {
    keep_feature_maps((from / "start.safetensors").string(),
                      kept.file("start.safetensors"));
  }
  const std::string weights = weights_file(folder);
  if (!weights.empty()) {
    keep_feature_maps(weights, kept.file("best/model.safetensors"));
  }
  kept.commit();
}

}  // namespace luna::report
