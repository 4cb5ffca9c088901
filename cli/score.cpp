#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "command.h"
#include "data/source_files.h"
#include "data/text_lines.h"
#include "luna/io/text_file.h"
#include "luna/text/bleu.h"
#include "luna/train/metrics.h"

namespace luna::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string path{};
  bool json = false;
  std::vector<std::string> metrics{};  ///< of translations; none: of labels
  std::vector<std::string> references{};
  text::BleuOptions bleu{};
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

text::Lines read_lines(const std::string& path) {
  const std::string bytes =
      path == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {})
                  : data::read_source(path);
  text::Lines lines;
  for (const std::string_view line : data::lines_of(bytes)) {
    lines.emplace_back(line);
  }
  return lines;
}

Json bleu_json(const text::BleuScore& score, const std::string& signature) {
  return {{"score", score.score},
          {"signature", signature},
          {"precisions", score.precisions},
          {"matches", score.matches},
          {"totals", score.totals},
          {"brevity_penalty", score.brevity_penalty},
          {"length", score.length},
          {"reference_length", score.reference_length}};
}

/// As sacreBLEU shows it.
std::string bleu_text(const text::BleuScore& score,
                      const std::string& signature) {
  std::vector<std::string> precisions;
  for (const double p : score.precisions) {
    precisions.push_back(fmt::format("{:.1f}", p));
  }
  const double ratio = score.reference_length == 0
                           ? 0
                           : static_cast<double>(score.length) /
                                 static_cast<double>(score.reference_length);
  return fmt::format(
      "BLEU|{} = {:.2f} {} (BP = {:.3f} ratio = {:.3f} hyp_len = {} ref_len = "
      "{})",
      signature, score.score, fmt::join(precisions, "/"), score.brevity_penalty,
      ratio, score.length, score.reference_length);
}

int run_translation(const Options& options) {
  if (options.references.empty()) {
    throw UsageError(
        fmt::format("--metric {}: expected --reference FILE, got "
                    "none",
                    options.metrics.front()));
  }
  const text::Lines lines = read_lines(options.path);
  std::vector<text::Lines> references;
  for (const std::string& path : options.references) {
    references.push_back(read_lines(path));
    TORCH_CHECK_VALUE(references.back().size() == lines.size(), path,
                      ": expected ", lines.size(), " lines, as ", options.path,
                      " has, got ", references.back().size());
  }
  Json result = Json::object();
  for (const std::string& metric : options.metrics) {
    if (metric == "bleu") {
      const auto score = text::bleu(lines, references, options.bleu);
      const std::string signature =
          text::bleu_signature(references.size(), options.bleu);
      result[metric] = bleu_json(score, signature);
      if (!options.json) fmt::print("{}\n", bleu_text(score, signature));
      continue;
    }
    const text::ChrfOptions chrf{.words = metric == "chrf++" ? 2 : 0};
    const double score = text::chrf(lines, references, chrf);
    const std::string signature = text::chrf_signature(references.size(), chrf);
    result[metric] = {{"score", score}, {"signature", signature}};
    if (!options.json) {
      fmt::print("{}|{} = {:.2f}\n", text::chrf_name(chrf), signature, score);
    }
  }
  if (options.json) fmt::print("{}\n", result.dump(2));
  return kOk;
}

int run(const Options& options) {
  if (!options.metrics.empty()) return run_translation(options);
  if (!options.references.empty()) {
    throw UsageError(
        "--reference: expected --metric bleu, chrf or chrf++ with it, got "
        "none");
  }
  const auto [labels, predictions] = read_scores(options.path);
  Json result = {{"samples", labels.size()}};
  const auto label_classes = as_classes(labels);
  const auto predicted_classes = as_classes(predictions);
  if (!label_classes.empty() && !predicted_classes.empty()) {
    result["accuracy"] = train::accuracy(label_classes, predicted_classes);
    // Of class 1 against class 0, as GLUE has it: not of three classes.
    const auto is_binary = [](int64_t c) { return c == 0 || c == 1; };
    if (std::ranges::all_of(label_classes, is_binary) &&
        std::ranges::all_of(predicted_classes, is_binary)) {
      result["f1"] = train::f1(label_classes, predicted_classes);
    }
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
      "score",
      "Judge predictions: accuracy, F1, Matthews, Pearson, Spearman; or "
      "translations: BLEU, chrF");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  luna score predictions.tsv\n"
      "  luna score --metric bleu --metric chrf output.de --reference test.de");
  const auto options = std::make_shared<Options>();
  app->add_option("path", options->path,
                  "Lines of a label, a tab and a prediction; the first three "
                  "metrics are given where all are whole numbers (classes), F1 "
                  "(of class 1) where all are 0 or 1. "
                  "With --metric: lines of a translation; - reads standard "
                  "input")
      ->required();
  app->add_option("--metric", options->metrics,
                  "Of a translation: bleu, chrf, chrf++; more than once for "
                  "more than one. Equal to sacreBLEU's")
      ->take_all()
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"bleu", "chrf", "chrf++"}))
      ->option_text("METRIC...");
  app->add_option("--reference", options->references,
                  "What the translation should be; more than once where there "
                  "are several")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("FILE");
  const std::map<std::string, text::BleuTokens> tokens = {
      {"13a", text::BleuTokens::k13a},
      {"intl", text::BleuTokens::kInternational},
      {"char", text::BleuTokens::kCharacters},
      {"none", text::BleuTokens::kNone}};
  app->add_option_function<std::string>(
         "--tokenize",
         [options, tokens](const std::string& name) {
           options->bleu.tokens = tokens.at(name);
         },
         "BLEU's words: 13a (default), intl, char, none")
      ->check(CLI::IsMember({"13a", "intl", "char", "none"}))
      ->option_text("TOKENS");
  app->add_flag_callback(
      "--no-smoothing", [options] { options->bleu.smooth = false; },
      "BLEU: a precision of 0 makes the score 0");
  app->add_flag("--effective-order", options->bleu.effective_order,
                "BLEU: only orders of n-grams that occur; for single "
                "sentences");
  app->add_flag("--json", options->json, "JSON instead of text");
  return {app, [options] { return run(*options); }};
}

}  // namespace luna::cli
