// Run folders made by hand, for the tests of the report.
#pragma once

#include <luna/io/text_file.h>
#include <luna/report/paper_recipes.h>
#include <luna/report/run_report.h>
#include <luna/train/run_folder.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace luna::report::testing {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A folder that goes away again.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "luna-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

struct RunRecipe {
  std::string task = "image", attention = "universal";
  int64_t seed = 1;
  double test_accuracy = 0.5;
  double steps_per_s = 2;
  double peak_memory = 1e9;
  int64_t length = 1024;
  Json model = Json::object();  ///< more of the config's model
  double seconds = 600;
  int64_t patience = 0, steps = 400, planned = 400;
  std::string paper = "universal";  ///< whose recipe it is, of tasks with one
  std::string data{};               ///< of translation: the data's name
  bool repeatable = true;
  std::string commit{};
  int64_t side_by_side = 0;  ///< 0: not recorded
};

inline Json config_of(const RunRecipe& r) {
  Json config = Json::object();
  for (const PaperRecipe& p : paper_recipes()) {
    if (p.paper == r.paper && r.task.starts_with(p.config.data.task)) {
      config = Json::parse(train::config_text(p.config));
    }
  }
  config.update({{"name", r.attention + "-" + std::to_string(r.seed)},
                 {"steps", r.planned},
                 {"patience", r.patience},
                 {"repeatable", r.repeatable},
                 {"seed", r.seed}});
  config["data"]["task"] = r.task;
  config["model"]["attention"] = r.attention;
  config["model"].update(r.model);
  return config;
}

/// A finished run: config, metrics and summary.
inline std::string write_run(const std::string& folder, const RunRecipe& r) {
  fs::create_directories(folder);
  const Json config = config_of(r);
  io::write_text(folder + "/config.json", config.dump());
  std::string lines;
  for (int step = 100; step <= r.steps; step += 100) {
    lines += Json{{"kind", "train"},
                  {"step", step},
                  {"loss", 2.0 - step / 400.0},
                  {"accuracy", 0.3},
                  {"steps_per_s", r.steps_per_s}}
                 .dump() +
             "\n" +
             Json{{"kind", "validation"},
                  {"step", step},
                  {"loss", 1.5},
                  {"accuracy", 0.1 * step / 100.0}}
                 .dump() +
             "\n";
  }
  lines += Json{{"kind", "test"}, {"step", 400}, {"accuracy", r.test_accuracy}}
               .dump() +
           "\n";
  io::write_text(folder + "/metrics.jsonl", lines);
  Json summary = {
      {"task", r.task},
      {"attention", r.attention},
      {"attention_title", r.attention == "nested" ? "nested-16" : r.attention},
      {"seed", r.seed},
      {"steps", r.steps},
      {"best_step", 400},
      {"validation_accuracy", 0.4},
      {"test_accuracy", r.test_accuracy},
      {"steps_per_s", r.steps_per_s},
      {"peak_memory_bytes", r.peak_memory},
      {"seconds", r.seconds},
      {"parameters", 12345},
      {"length", r.length},
      {"batch", config.value("batch", 32)},
      {"device", "cpu"},
      {"machine", {{"cpu", "Test CPU"}, {"threads", 2}, {"isa", "avx2"}}},
      {"luna", "0.1.0"}};
  if (!r.commit.empty()) summary["commit"] = r.commit;
  if (r.side_by_side > 0) summary["side_by_side"] = r.side_by_side;
  if (!r.data.empty()) {
    summary["test_bleu"] = 100 * r.test_accuracy;
    const Json facts = {
        {"name", r.data},
        {"splits",
         {{"train", {{"source_tokens", 10}, {"target_tokens", 12}}}}}};
    io::write_text(folder + "/translation.json", facts.dump());
  }
  io::write_text(folder + "/summary.json", summary.dump());
  return folder;
}

inline RunReport report_of(const std::vector<RunRecipe>& recipes) {
  const TemporaryFolder folder;
  std::vector<Run> runs;
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    runs.push_back(read_run(write_run(folder / std::to_string(i), recipes[i])));
  }
  return make_report(std::move(runs));
}

inline RunRecipe recipe(const std::string& attention, double accuracy,
                        int64_t seed = 1) {
  RunRecipe r;
  r.attention = attention;
  r.test_accuracy = accuracy;
  r.seed = seed;
  return r;
}

}  // namespace luna::report::testing
