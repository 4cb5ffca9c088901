#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "command.h"
#include "luna/io/text_file.h"
#include "luna/train/metrics.h"

namespace luna::cli {
namespace {

struct Options {
  std::string path{};
  bool json = false;
};

struct Scores {
  std::vector<double> labels{}, predictions{};
};

/// Lines of a label, a tab, a prediction.
Scores read_scores(const std::string& path) {
  const std::string text = io::read_text(path);
  Scores scores;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int64_t line = 1; at < end; ++line) {
    double label = 0, prediction = 0;
    auto read = std::from_chars(at, end, label);
    const bool tab =
        read.ec == std::errc() && read.ptr < end && *read.ptr == '\t';
    if (tab) read = std::from_chars(read.ptr + 1, end, prediction);
    const bool good =
        tab && read.ec == std::errc() && (read.ptr == end || *read.ptr == '\n');
    TORCH_CHECK_VALUE(good, path, ": line ", line,
                      ": expected a label, a tab and a prediction, got ",
                      std::string(at, std::find(at, end, '\n')));
    scores.labels.push_back(label);
    scores.predictions.push_back(prediction);
    at = read.ptr + (read.ptr == end ? 0 : 1);
  }
  return scores;
}

std::vector<int64_t> as_classes(const std::vector<double>& values) {
  std::vector<int64_t> classes;
  for (const double value : values) {
    const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
    if (!whole) return {};
    classes.push_back(static_cast<int64_t>(value));
  }
  return classes;
}

int run(const Options& options) {
  const auto [labels, predictions] = read_scores(options.path);
  nlohmann::ordered_json result = {{"samples", labels.size()}};
  const auto label_classes = as_classes(labels);
  const auto predicted_classes = as_classes(predictions);
  if (!label_classes.empty() && !predicted_classes.empty()) {
    result["accuracy"] = train::accuracy(label_classes, predicted_classes);
    result["f1"] = train::f1(label_classes, predicted_classes);
    result["matthews"] = train::matthews(label_classes, predicted_classes);
  }
  result["pearson"] = train::pearson(labels, predictions);
  result["spearman"] = train::spearman(labels, predictions);
  if (options.json) {
    fmt::print("{}\n", result.dump(2));
    return kOk;
  }
  for (const auto& [name, value] : result.items()) {
    fmt::print("{:10} {}\n", name, value.dump());
  }
  return kOk;
}

}  // namespace

Command add_score(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "score", "Judge predictions: accuracy, F1, Matthews, Pearson, Spearman");
  app->allow_extras();
  app->footer(
      "Example:\n"
      "  luna score predictions.tsv");
  const auto options = std::make_shared<Options>();
  app->add_option("path", options->path,
                  "Lines of a label, a tab and a prediction; the first three "
                  "metrics are given where all are whole numbers (classes)")
      ->required();
  app->add_flag("--json", options->json, "JSON instead of text");
  return {app, [options] { return run(*options); }};
}

}  // namespace luna::cli
