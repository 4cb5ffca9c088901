#include "luna/report/run.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "config/json.h"
#include "io/base64.h"
#include "luna/data/translation.h"
#include "luna/io/text_file.h"
#include "luna/train/open_data.h"
#include "luna/train/run_folder.h"
#include "report/json_fields.h"

namespace luna::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kDepth = 4;  // runs/lra/universal/image-1

/// BLEU and its like, from 0 to 100.
std::optional<double> share_of_hundred(const Json& json, const char* name) {
  const auto value = number_of(json, name);
  return value ? std::optional(*value / 100) : std::nullopt;
}

/// Something of the folder that cannot be used costs a note, not the report.
template <class Read>
void note_failure(Run& run, const std::string& file, Read read) {
  const std::string path = (fs::path(run.folder) / file).string();
  if (!fs::exists(path)) {
    run.notes.push_back("no " + file);
    return;
  }
  std::string reason;
  try {
    read(path);
    return;
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  reason.resize(std::min(reason.size(), reason.find('\n')));
  run.notes.push_back(fmt::format("{} left out: {}", file, reason));
}

void read_config(Run& run, const std::string& path) {
  const Json json = config::parse_json(io::read_text(path), path);
  run.config = config::read_json<train::TrainConfig>("config.json", json);
  const train::TrainConfig& c = *run.config;
  if (!c.name.empty()) run.name = c.name;
  run.task = c.data.task;
  run.attention = c.model.attention;
  run.title = run.attention;
  if (run.attention == "nested") {
    run.title += fmt::format("-{}", c.model.memory_length);
  }
  run.seed = c.seed;
  run.batch = c.batch;
  run.planned_steps = c.steps;
  if (c.data.max_length > 0) run.length = c.data.max_length;
}

std::string machine_words(const Json& m, const std::string& device) {
  const std::string cpu = text_of(m, "cpu").value_or("an unnamed machine");
  const auto devices = m.find("cuda_devices");
  if (device.starts_with("cuda") && devices != m.end() && devices->is_array() &&
      !devices->empty() && devices->front().is_string()) {
    // What runs there does not depend on the host's threads.
    return devices->front().get<std::string>() + " beside " + cpu;
  }
  std::string words;
  const auto threads = whole_of(m, "threads");
  if (threads)
    words += fmt::format("{} thread{} of ", *threads, *threads == 1 ? "" : "s");
  words += cpu;
  if (const auto isa = text_of(m, "isa")) words += " (" + *isa + ")";
  return words;
}

void read_sizes(Run& run, const Json& summary) {
  const auto samples = summary.find("samples");
  if (samples == summary.end() || !samples->is_object()) return;
  std::array<std::int64_t, 3> sizes{};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto size = whole_of(*samples, data::kSplitNames[i]);
    if (!size) return;
    sizes[i] = *size;
  }
  run.samples = sizes;
  if (!run.config) return;
  const std::string why = train::shortfall(run.config->data, sizes);
  if (!why.empty()) run.notes.push_back(why);
}

void read_summary(Run& run, const std::string& path) {
  const Json json = config::parse_json(io::read_text(path), path);
  TORCH_CHECK_VALUE(json.is_object(), "expected an object, got ",
                    json.type_name());
  const auto take = [&](auto& field, const char* name, auto read) {
    if (const auto value = read(json, name)) field = *value;
  };
  take(run.name, "name", text_of);
  take(run.task, "task", text_of);
  take(run.attention, "attention", text_of);
  take(run.title, "attention_title", text_of);
  take(run.seed, "seed", whole_of);
  take(run.steps, "steps", whole_of);
  take(run.best_step, "best_step", whole_of);
  take(run.length, "length", whole_of);
  take(run.batch, "batch", whole_of);
  read_sizes(run, json);
  take(run.parameters, "parameters", whole_of);
  take(run.attention_parameters, "attention_parameters", whole_of);
  take(run.validation_accuracy, "validation_accuracy", number_of);
  take(run.test_accuracy, "test_accuracy", number_of);
  // What a translator is judged by takes the place of accuracy.
  take(run.validation_accuracy, "validation_bleu", share_of_hundred);
  take(run.test_accuracy, "test_bleu", share_of_hundred);
  take(run.test_loss, "test_loss", number_of);
  take(run.steps_per_s, "steps_per_s", number_of);
  take(run.tokens_per_s, "tokens_per_s", number_of);
  take(run.peak_memory, "peak_memory_bytes", number_of);
  take(run.load_share, "load_share", number_of);
  take(run.seconds, "seconds", number_of);
  take(run.side_by_side, "side_by_side", whole_of);
  const auto machine = json.find("machine");
  if (machine != json.end() && machine->is_object()) {
    run.machine =
        machine_words(*machine, text_of(json, "device").value_or("cpu"));
  }
  take(run.commit, "commit", text_of);
  for (const char* name : {"luna", "torch"}) {
    if (const auto version = text_of(json, name)) {
      if (!run.versions.empty()) run.versions += ", ";
      run.versions += fmt::format("{} {}", name, *version);
    }
  }
}

/// Which data a translator saw, from what its run keeps of it.
void read_translation(Run& run) {
  if (run.task != data::kTranslationTask) return;
  if (run.config) {
    fs::path path = run.config->data.path;
    if (!path.has_filename()) path = path.parent_path();
    run.data_name = path.filename().string();
  }
  run.data_key = run.data_name;
  note_failure(run, "translation.json", [&](const std::string& path) {
    const Json json = config::parse_json(io::read_text(path), path);
    run.data_name = text_of(json, "name").value_or(run.data_name);
    const Json& train = json.at("splits").at("train");
    // As many tokens of each side: the same text in the same direction.
    run.data_key = fmt::format("{} {} {}", run.data_name,
                               train.at("source_tokens").get<std::int64_t>(),
                               train.at("target_tokens").get<std::int64_t>());
  });
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(fs::path(run.folder) / "scores", error)) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().stem().string();
    note_failure(run, "scores/" + name + ".json", [&](const std::string& path) {
      const Json json = config::parse_json(io::read_text(path), path);
      run.scores[name] = json.at("bleu").at("score").get<double>();
    });
  }
}

train::FeatureUse feature_use_from(const Json& line) {
  const auto side = [&](const char* name) {
    const auto found = line.find(name);
    const Json of = found == line.end() ? Json::object() : *found;
    return train::FeatureUse::Side{number_of(of, "live").value_or(0),
                                   number_of(of, "silent").value_or(0)};
  };
  train::FeatureUse use{.map = text_of(line, "map").value_or(""),
                        .query = side("query"),
                        .key = side("key")};
  const auto u = line.find("u");
  if (u != line.end() && u->is_array()) {
    for (const Json& value : *u) {
      if (value.is_number()) use.u.push_back(value.get<double>());
    }
  }
  return use;
}

void read_metric(Run& run, const Json& line) {
  const std::string kind = text_of(line, "kind").value_or("");
  const auto step = whole_of(line, "step");
  if (!step) return;
  Metric metric = {number_of(line, "loss"), number_of(line, "accuracy"),
                   number_of(line, "steps_per_s")};
  if (line.contains("bleu")) metric.accuracy = share_of_hundred(line, "bleu");
  // A resumed run writes again what came after its checkpoint: the last wins.
  if (kind == "train") run.train[*step] = metric;
  if (kind == "validation") run.validation[*step] = metric;
  if (kind == "skipped") ++run.skipped_steps;
  // Those before the first step are the start's.
  if (kind == "features" && *step > 0) {
    run.features.push_back(feature_use_from(line));
  }
  if (kind == "test") {
    if (!run.test_accuracy) run.test_accuracy = metric.accuracy;
    if (!run.test_loss) run.test_loss = metric.loss;
  }
  if (const auto seconds = number_of(line, "seconds"); seconds) {
    run.seconds = std::max(run.seconds.value_or(0), *seconds);
  }
}

void read_metrics(Run& run, const std::string& path) {
  std::istringstream lines(io::read_text(path));
  std::string line;
  int number = 0, bad = 0, last_bad = 0;
  while (std::getline(lines, line)) {
    ++number;
    if (line.empty()) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_object()) {
      read_metric(run, json);
    } else {
      ++bad;
      last_bad = number;
    }
  }
  if (bad == 1 && last_bad == number) {
    run.notes.push_back("the last line of metrics.jsonl is torn");
  } else if (bad > 0) {
    run.notes.push_back(fmt::format(
        "metrics.jsonl: {} lines left out, the last of them line {}", bad,
        last_bad));
  }
}

Prediction prediction_from(const Json& json) {
  Prediction p;
  p.kind = text_of(json, "kind").value_or("text");
  p.text = text_of(json, "text").value_or("");
  p.second = text_of(json, "second").value_or("");
  p.height = whole_of(json, "height").value_or(0);
  p.width = whole_of(json, "width").value_or(0);
  p.channels = whole_of(json, "channels").value_or(1);
  if (const auto pixels = text_of(json, "pixels")) {
    p.pixels = io::from_base64(*pixels);
    TORCH_CHECK_VALUE(p.height > 0 && p.width > 0 &&
                          (p.channels == 1 || p.channels == 3) &&
                          p.channels * p.height * p.width ==
                              static_cast<std::int64_t>(p.pixels.size()),
                      "pixels: expected ", p.channels, " x ", p.height, " x ",
                      p.width, ", got ", p.pixels.size());
  }
  if (const auto translation = text_of(json, "translation")) {
    p.translation = *translation;
    p.predicted = p.translation == p.second ? 0 : 1;
    return p;
  }
  p.label = json.at("label").get<std::int64_t>();
  p.predicted = json.at("predicted").get<std::int64_t>();
  const auto probabilities = json.find("probabilities");
  if (probabilities != json.end() && probabilities->is_array()) {
    p.probabilities = probabilities->get<std::vector<double>>();
  }
  return p;
}

void read_samples(Run& run, const std::string& path) {
  const Json json = config::parse_json(io::read_text(path), path);
  const auto classes = json.find("classes");
  if (classes != json.end()) {
    run.classes = classes->get<std::vector<std::string>>();
  }
  for (const Json& sample : json.at("samples")) {
    run.predictions.push_back(prediction_from(sample));
  }
}

void read_psi(Run& run) {
  if (run.attention != "universal") return;
  const std::string model = weights_file(run.folder);
  if (model.empty()) {
    run.notes.push_back("no weights");
    return;
  }
  bool nonneg = true;
  if (run.config) {
    const auto& options = run.config->model.attention_options;
    const auto found = options.find("nonneg");
    if (found != options.end()) nonneg = std::get<bool>(found->second);
  }
  const std::string file =
      fs::path(model).lexically_relative(run.folder).string();
  const fs::path start = fs::path(run.folder) / "start.safetensors";
  const bool has_start = fs::exists(start);
  if (!has_start) run.notes.push_back("no start.safetensors");
  note_failure(run, file, [&](const std::string& path) {
    run.psi = learned_psi(path, has_start ? start.string() : "", nonneg,
                          run.features);
  });
}

/// What the summary would say, from the metrics of a run without one.
void fill_gaps(Run& run) {
  const auto last = [](const Curve& curve) {
    return curve.empty() ? 0 : curve.rbegin()->first;
  };
  const std::int64_t step = std::max(last(run.train), last(run.validation));
  if (step > 0) run.steps = std::max(run.steps.value_or(0), step);
  for (const auto& [at, metric] : run.validation) {
    if (!metric.accuracy) continue;
    if (!run.best_step || !run.validation_accuracy ||
        *metric.accuracy > *run.validation_accuracy) {
      run.validation_accuracy = metric.accuracy;
      run.best_step = at;
    }
  }
  if (!run.steps_per_s) {
    std::vector<double> speeds;
    for (const auto& [at, metric] : run.train) {
      if (metric.steps_per_s) speeds.push_back(*metric.steps_per_s);
    }
    if (!speeds.empty()) {
      const auto middle =
          speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
      std::nth_element(speeds.begin(), middle, speeds.end());
      run.steps_per_s = *middle;
    }
  }
  run.finished = run.test_accuracy.has_value();
  if (run.title.empty()) run.title = run.attention;
  if (run.title.empty()) run.title = "unknown attention";
  if (run.task.empty()) run.task = "unknown task";
}

void collect(const fs::path& folder, int depth, std::vector<fs::path>& runs) {
  if (is_run_folder(folder.string())) {
    runs.push_back(folder);
    return;
  }
  if (depth == 0) return;
  std::vector<fs::path> inside;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_directory(error)) inside.push_back(entry.path());
  }
  std::sort(inside.begin(), inside.end());
  for (const fs::path& path : inside) collect(path, depth - 1, runs);
}

}  // namespace

std::optional<double> Run::accuracy() const {
  return test_accuracy ? test_accuracy : validation_accuracy;
}

std::string Run::class_name(std::int64_t label) const {
  const bool known =
      label >= 0 && label < static_cast<std::int64_t>(classes.size());
  return known ? classes[static_cast<std::size_t>(label)]
               : std::to_string(label);
}

std::string weights_file(const std::string& folder) {
  // What was tested: means of checkpoints, where a run has them.
  for (const char* tested : {"averaged", "best"}) {
    const fs::path file = fs::path(folder) / tested / "model.safetensors";
    if (fs::exists(file)) return file.string();
  }
  std::string last;
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(fs::path(folder) / "checkpoints", error)) {
    const fs::path file = entry.path() / "model.safetensors";
    if (fs::exists(file)) last = std::max(last, file.string());
  }
  return last;
}

bool is_run_folder(const std::string& folder) {
  const fs::path path = folder;
  std::error_code error;
  const auto has = [&](const char* name) {
    return fs::exists(path / name, error);
  };
  return has("metrics.jsonl") || has("checkpoints") ||
         train::RunFolder(folder).holds_run();
}

std::vector<std::string> find_runs(const std::vector<std::string>& paths) {
  std::vector<std::string> runs;
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    std::error_code error;
    // runs/* also names the page that an earlier report wrote there.
    if (fs::is_regular_file(path, error) && paths.size() > 1) continue;
    std::vector<fs::path> found;
    collect(path, kDepth, found);
    if (found.empty()) train::check_run_folder(path);
    for (const fs::path& run : found) {
      if (seen.insert(fs::canonical(run, error)).second) {
        runs.push_back(run.string());
      }
    }
  }
  TORCH_CHECK_VALUE(!runs.empty(),
                    "expected at least one run folder of luna train, got none");
  return runs;
}

Run read_run(const std::string& folder) {
  TORCH_CHECK_VALUE(is_run_folder(folder), folder,
                    ": expected a run folder of luna train");
  Run run;
  run.folder = folder;
  const fs::path whole = fs::absolute(folder).lexically_normal();
  run.name =
      (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  note_failure(run, "config.json",
               [&](const std::string& path) { read_config(run, path); });
  note_failure(run, "summary.json",
               [&](const std::string& path) { read_summary(run, path); });
  note_failure(run, "metrics.jsonl",
               [&](const std::string& path) { read_metrics(run, path); });
  note_failure(run, "samples.json",
               [&](const std::string& path) { read_samples(run, path); });
  fill_gaps(run);
  read_psi(run);
  read_translation(run);
  const bool known = run.steps && run.planned_steps;
  if (!run.finished || (known && *run.steps < *run.planned_steps)) {
    std::string progress = run.finished ? "ended early" : "not finished";
    if (known) {
      progress +=
          fmt::format(": {} of {} steps", *run.steps, *run.planned_steps);
    }
    run.notes.insert(run.notes.begin(), progress);
  }
  return run;
}

}  // namespace luna::report
