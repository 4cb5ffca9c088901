#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "interrupt.h"
#include "io/folder_config.h"
#include "luna/data/glue.h"
#include "luna/data/tasks.h"
#include "luna/io/text_file.h"
#include "luna/report/format.h"
#include "luna/report/table.h"
#include "luna/train/read_config.h"
#include "luna/train/run_model.h"
#include "luna/train/trainer.h"
#include "run_options.h"

namespace luna::cli {
namespace {

using Json = nlohmann::ordered_json;
using train::Evaluation;

struct Typed {
  std::string folder{}, split = "test", task{};
  int64_t batch = 0;
  std::optional<int64_t> max_length{};
  RunOptions run{};
};

/// What the confusion says of one class.
struct ClassFigures {
  int64_t samples = 0, taken = 0, correct = 0;
  int64_t confused_with = -1;  ///< what it was most often taken for instead

  double recall() const {
    return samples > 0 ? static_cast<double>(correct) / samples : 0.0;
  }
  double precision() const {
    return taken > 0 ? static_cast<double>(correct) / taken : 0.0;
  }
};

ClassFigures figures_of(const Evaluation& e, int64_t label) {
  ClassFigures f;
  int64_t most = 0;
  for (int64_t other = 0; other < e.classes; ++other) {
    const int64_t given = e.confusion[label * e.classes + other];
    f.samples += given;
    f.taken += e.confusion[other * e.classes + label];
    if (other == label) {
      f.correct = given;
    } else if (given > most) {
      most = given;
      f.confused_with = other;
    }
  }
  return f;
}

void print_text(const Evaluation& e, const std::string& split,
                const std::vector<std::string>& names) {
  if (e.classes == 1) {
    fmt::print(
        "{}: {} {:.4f}, spearman {:.4f}, squared error {:.4f}, {} "
        "samples\n",
        split, e.metric, e.score, e.spearman, e.loss,
        report::grouped(e.samples));
    return;
  }
  const std::string score =
      e.metric == "accuracy" ? "" : ", " + score_text(e.metric, e.score);
  fmt::print("{}: accuracy {}{}, loss {:.4f}, {} samples\n", split,
             per_cent(e.accuracy), score, e.loss, report::grouped(e.samples));
  if (e.classes == 0) return;
  report::Table table({{"class", false},
                       {"samples", true},
                       {"recall", true},
                       {"precision", true},
                       {"most often taken for", false}});
  for (int64_t c = 0; c < e.classes; ++c) {
    const ClassFigures f = figures_of(e, c);
    table.add_row({names[c], report::grouped(f.samples), per_cent(f.recall()),
                   per_cent(f.precision()),
                   f.confused_with < 0 ? "–" : names[f.confused_with]});
  }
  fmt::print("\n{}", table.text());
}

void print_json(const Evaluation& e, const std::string& split,
                const std::vector<std::string>& names) {
  if (e.classes == 1) {
    const Json json = {{"split", split},
                       {"samples", e.samples},
                       {e.metric, e.score},
                       {"spearman", e.spearman},
                       {"squared_error", e.loss}};
    fmt::print("{}\n", json.dump(2));
    return;
  }
  Json classes = Json::array(), confusion = Json::array();
  for (int64_t c = 0; c < e.classes; ++c) {
    const ClassFigures f = figures_of(e, c);
    classes.push_back({{"class", names[c]},
                       {"samples", f.samples},
                       {"recall", f.recall()},
                       {"precision", f.precision()}});
    const auto row = e.confusion.begin() + c * e.classes;
    confusion.push_back(std::vector<int64_t>(row, row + e.classes));
  }
  Json json = {{"split", split},         {"samples", e.samples},
               {"accuracy", e.accuracy}, {"loss", e.loss},
               {"classes", classes},     {"confusion", confusion}};
  if (e.metric != "accuracy") json[e.metric] = e.score;
  fmt::print("{}\n", json.dump(2));
}

void print(const Typed& typed, const std::optional<Evaluation>& result,
           const data::TaskInfo& info) {
  if (!result) throw Interrupted();
  const auto names = data::class_names(info);
  typed.run.json ? print_json(*result, typed.split, names)
                 : print_text(*result, typed.split, names);
}

/// What luna convert made a folder for.
struct Converted {
  std::string task{};  ///< empty if the folder is not its
  std::optional<int64_t> max_length{};
};

Converted read_conversion(const std::string& folder) {
  const auto path = std::filesystem::path(folder) / "conversion.json";
  if (!std::filesystem::exists(path)) return {};
  const Json json = Json::parse(io::read_text(path.string()), nullptr,
                                /*allow_exceptions=*/false);
  const bool named =
      json.is_object() && json.contains("task") && json["task"].is_string();
  TORCH_CHECK_VALUE(named, path.string(),
                    ": task: expected the name of a task, got none");
  Converted found{json["task"]};
  if (!json.contains("max_length")) return found;  // written before there was
  const Json& length = json["max_length"];
  TORCH_CHECK_VALUE(length.is_number_integer() && length >= 0, path.string(),
                    ": max_length: expected a number from 0, got ",
                    length.dump());
  found.max_length = length;
  return found;
}

/// Ids in a sequence where neither the command nor the folder says.
constexpr int64_t kUsualLength = 128;

/// A Hugging Face folder on a task of texts or pictures.
int eval_folder(const Typed& typed, size_t split) {
  if (typed.run.data.empty()) {
    throw UsageError(
        fmt::format("--data: expected the folder of the files of {}, got none",
                    typed.task));
  }
  const auto model = train::open_trained(typed.folder);
  const auto classifier = train::as_classifier(model);
  const c10::Device device = settle_device(typed.run);
  catch_interrupts();
  const data::Splits splits =
      train::open_task(model, typed.task,
                       {.data = typed.run.data,
                        .max_length = typed.max_length.value_or(kUsualLength)});
  const auto data = splits.all()[split];
  classifier->to(device);
  print(typed,
        train::evaluate(
            *classifier, *data,
            {.batch = typed.batch > 0 ? typed.batch : 32, .stop = interrupted}),
        data->info());
  return kOk;
}

int run_eval(Typed typed) {
  const auto known = data::kSplitNames;
  const auto found = std::find(known.begin(), known.end(), typed.split);
  if (found == known.end()) {
    throw UsageError(fmt::format(
        "--split: expected train, validation or test, got {}", typed.split));
  }
  const Converted converted = read_conversion(typed.folder);
  if (typed.task.empty()) typed.task = converted.task;
  if (!typed.max_length) typed.max_length = converted.max_length;
  if (!typed.task.empty()) return eval_folder(typed, found - known.begin());
  if (io::is_hugging_face(typed.folder)) {
    throw UsageError(fmt::format(
        "--task: expected one with a Hugging Face folder, got none: luna eval "
        "{} --task TASK --data DIR, where TASK is one of {} for a BERT, "
        "cifar10 for a ViT",
        typed.folder, fmt::join(data::glue_task_names(), ", ")));
  }
  train::check_run_folder(typed.folder);
  const train::RunFolder run(typed.folder);
  TORCH_CHECK_VALUE(std::filesystem::exists(run.best()), run.path(),
                    ": expected a run with a validation behind it, got one "
                    "without best weights; go on with it by: luna train "
                    "--resume ",
                    run.path());
  train::TrainConfig config = train::read_train_config(run.config());
  if (!typed.run.data.empty()) config.data.path = typed.run.data;
  const c10::Device device = settle_device(typed.run);
  catch_interrupts();
  const data::Splits splits =
      open_run_data("eval", config, run.path() + "/data");
  const auto data = splits.all()[found - known.begin()];
  const auto model = train::load_best(run, config, data->info());
  model->to(device);
  const int64_t usual =
      config.eval_batch > 0 ? config.eval_batch : config.batch;
  const auto result =
      train::evaluate(*model, *data,
                      {.batch = typed.batch > 0 ? typed.batch : usual,
                       .max_length = config.data.max_length,
                       .autocast = config.autocast,
                       .beam = config.translation.beam,
                       .length_penalty = config.translation.length_penalty,
                       .stop = interrupted});
  print(typed, result, data->info());
  return kOk;
}

}  // namespace

Command add_eval(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "eval",
      "Accuracy, loss and confusion of a run's best weights, of a folder of "
      "luna convert, or of a Hugging Face folder");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  luna eval runs/listops --split validation --json\n"
      "  luna eval linear --data glue  # its conversion.json names the task\n"
      "  luna eval path/to/bert-sst2 --task sst2 --data glue");
  const auto typed = std::make_shared<Typed>();
  app->add_option("run", typed->folder,
                  "The run's folder, a folder of luna convert --task, or with "
                  "--task any Hugging Face folder")
      ->required()
      ->type_name("RUN");
  app->add_option("--split", typed->split, "train, validation or test (test)");
  app->add_option(
      "--task", typed->task,
      "For a Hugging Face folder: a task of GLUE or sick for a BERT, "
      "cifar10 for a ViT");
  app->add_option("--max-length", typed->max_length,
                  "For a Hugging Face folder: ids in a sequence (that of luna "
                  "convert, else 128)");
  app->add_option("--batch", typed->batch, "Samples in a batch (the run's)");
  add_run_options(*app, typed->run);
  return {app, [typed] {
            return unless_interrupted("eval", [&] { return run_eval(*typed); });
          }};
}

}  // namespace luna::cli
