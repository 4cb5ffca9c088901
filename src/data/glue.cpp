#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <luna/config/options.h>
#include <luna/data/glue.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "data/source_files.h"
#include "io/strict_json.h"

namespace luna::data {
namespace {

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(by);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

/// Where the wanted columns are.
struct Columns {
  size_t first = 0, second = 0, label = 0, least = 0;
};

Columns find_columns(const GlueTask& task, const std::string& path,
                     const std::vector<std::string_view>& names) {
  const auto place = [&](const std::string& wanted) {
    const auto found = std::ranges::find(names, wanted);
    TORCH_CHECK_VALUE(found != names.end(), path,
                      ": line 1: expected the column ", io::in_quotes(wanted),
                      " of ", task.name, ", got ",
                      io::in_quotes(fmt::format("{}", fmt::join(names, ", "))));
    return static_cast<size_t>(found - names.begin());
  };
  Columns columns{place(task.first), 0, place(task.label), 0};
  columns.second = task.pairs() ? place(task.second) : columns.first;
  columns.least = std::max({columns.first, columns.second, columns.label}) + 1;
  return columns;
}

double read_label(const GlueTask& task, const std::string& where,
                  std::string_view text) {
  if (task.classes.empty()) {
    double score = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), score);
    TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size(),
                      where, ": ", task.label, ": expected a number, got ",
                      io::in_quotes(text));
    return score;
  }
  const auto found = std::ranges::find(task.classes, text);
  TORCH_CHECK_VALUE(found != task.classes.end(), where, ": ", task.label,
                    ": expected one of ",
                    fmt::format("{}", fmt::join(task.classes, ", ")), ", got ",
                    io::in_quotes(text));
  return static_cast<double>(found - task.classes.begin());
}

}  // namespace

const std::vector<GlueTask>& glue_tasks() {
  static const std::vector<std::string> binary = {"0", "1"};
  static const std::vector<std::string> entails = {"entailment",
                                                   "not_entailment"};
  static const std::vector<GlueTask> all = {
      {.name = "sst2",
       .what = "film reviews: negative or positive",
       .first = "sentence",
       .label = "label",
       .classes = binary,
       .metrics = {"accuracy"},
       .train = {"SST-2/train.tsv", "sst2_train.tsv"},
       .validation = {"SST-2/dev.tsv", "sst2_dev.tsv"}},
      {.name = "cola",
       .what = "sentences: acceptable English or not",
       .first = "sentence",
       .label = "label",
       .classes = binary,
       .metrics = {"matthews", "accuracy"},
       .train = {"CoLA/train.tsv", "cola_in_domain_train.tsv"},
       .validation = {"CoLA/dev.tsv", "cola_in_domain_dev.tsv"},
       .header = false},
      {.name = "mrpc",
       .what = "pairs of sentences: the same said twice or not",
       .first = "#1 String",
       .second = "#2 String",
       .label = "Quality",
       .classes = binary,
       .metrics = {"f1", "accuracy"},
       .train = {"MRPC/train.tsv", "mrpc_train.tsv"},
       .validation = {"MRPC/dev.tsv", "mrpc_val.tsv"}},
      {.name = "stsb",
       .what = "pairs of sentences: how alike, from 0 to 5",
       .first = "sentence1",
       .second = "sentence2",
       .label = "score",
       .metrics = {"pearson", "spearman"},
       .train = {"STS-B/train.tsv", "stsb_train.tsv"},
       .validation = {"STS-B/dev.tsv", "stsb_dev.tsv"}},
      {.name = "qqp",
       .what = "pairs of questions: the same or not",
       .first = "question1",
       .second = "question2",
       .label = "is_duplicate",
       .classes = binary,
       .metrics = {"f1", "accuracy"},
       .train = {"QQP/train.tsv", "qqp_train.tsv"},
       .validation = {"QQP/dev.tsv", "qqp_dev.tsv"},
       .broken_rows = true},
      {.name = "mnli",
       .what = "premise and hypothesis: entailed, open or contradicted",
       .first = "sentence1",
       .second = "sentence2",
       .label = "gold_label",
       .classes = {"entailment", "neutral", "contradiction"},
       .metrics = {"accuracy"},
       .train = {"MNLI/train.tsv", "mnli_train.tsv"},
       .validation = {"MNLI/dev_matched.tsv", "mnli_dev_matched.tsv"}},
      {.name = "qnli",
       .what = "question and sentence: whether it holds the answer",
       .first = "question",
       .second = "sentence",
       .label = "label",
       .classes = entails,
       .metrics = {"accuracy"},
       .train = {"QNLI/train.tsv", "qnli_train.tsv"},
       .validation = {"QNLI/dev.tsv", "qnli_dev.tsv"}},
      {.name = "rte",
       .what = "premise and hypothesis: entailed or not",
       .first = "sentence1",
       .second = "sentence2",
       .label = "label",
       .classes = entails,
       .metrics = {"accuracy"},
       .train = {"RTE/train.tsv", "rte_train.tsv"},
       .validation = {"RTE/dev.tsv", "rte_dev.tsv"}},
      {.name = "sick",
       .what = "SICK's pairs: entailed, open or contradicted",
       .first = "sentence_A",
       .second = "sentence_B",
       .label = "entailment_judgment",
       .classes = {"ENTAILMENT", "NEUTRAL", "CONTRADICTION"},
       .metrics = {"accuracy"},
       .train = {"SICK/SICK_train.txt", "SICK_train.tsv"},
       .validation = {"SICK/SICK_trial.txt", "SICK_trial.tsv"}},
  };
  return all;
}

std::vector<std::string> glue_task_names() {
  std::vector<std::string> names;
  for (const GlueTask& task : glue_tasks()) names.push_back(task.name);
  return names;
}

bool is_glue_task(const std::string& name) {
  return std::ranges::count(glue_tasks(), name, &GlueTask::name) > 0;
}

const GlueTask& find_glue_task(const std::string& name) {
  for (const GlueTask& task : glue_tasks()) {
    if (task.name == name) return task;
  }
  TORCH_CHECK_VALUE(false, "find_glue_task: expected one of ",
                    config::known_and_nearest(name, glue_task_names()),
                    ", got ", name);
}

std::string find_glue_file(const GlueTask& task, const std::string& folder,
                           const std::string& split) {
  TORCH_CHECK_VALUE(split == "train" || split == "validation",
                    "find_glue_file: expected train or validation, got ",
                    split);
  const auto& files = split == "train" ? task.train : task.validation;
  for (const std::string& place : {std::string(), std::string("glue")}) {
    for (const std::string& file : files) {
      const auto path = std::filesystem::path(folder) / place / file;
      if (std::filesystem::exists(path)) return path.string();
    }
  }
  TORCH_CHECK_VALUE(false, folder, ": expected the ", split, " split of ",
                    task.name, " as one of ",
                    fmt::format("{}", fmt::join(files, ", ")),
                    " in it or in its folder glue, got none of them");
}

GlueFile read_glue(const GlueTask& task, const std::string& path) {
  const std::string bytes = read_source(path);
  std::string_view text = bytes;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (text.ends_with('\n')) text.remove_suffix(1);
  GlueFile result;
  Columns columns;
  size_t number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto cells = split(line, '\t');
    if (number == 1) {
      columns = find_columns(task, path,
                             task.header
                                 ? cells
                                 : std::vector<std::string_view>{
                                       "source", "label", "star", "sentence"});
      if (task.header) continue;
    }
    if (cells.size() < columns.least && task.broken_rows) {
      ++result.left_out;
      continue;
    }
    const std::string where = fmt::format("{}: line {}", path, number);
    TORCH_CHECK_VALUE(cells.size() >= columns.least, where,
                      ": expected at least ", columns.least,
                      " columns with tabs between them, got ", cells.size());
    GlueExample example{std::string(cells[columns.first])};
    if (task.pairs()) example.second = cells[columns.second];
    example.label = read_label(task, where, cells[columns.label]);
    result.examples.push_back(std::move(example));
  }
  TORCH_CHECK_VALUE(!result.examples.empty(), path,
                    ": expected an example or more, got none");
  return result;
}

}  // namespace luna::data
