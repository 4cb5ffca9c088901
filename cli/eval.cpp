#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "interrupt.h"
#include "luna/data/tasks.h"
#include "luna/report/format.h"
#include "luna/report/table.h"
#include "luna/train/read_config.h"
#include "luna/train/trainer.h"
#include "run_options.h"

namespace luna::cli {
namespace {

using Json = nlohmann::ordered_json;
using train::Evaluation;

struct Typed {
  std::string folder{}, split = "test";
  int64_t batch = 0;
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
  fmt::print("{}: accuracy {}, loss {:.4f}, {} samples\n\n", split,
             per_cent(e.accuracy), e.loss, report::grouped(e.samples));
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
  fmt::print("{}", table.text());
}

void print_json(const Evaluation& e, const std::string& split,
                const std::vector<std::string>& names) {
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
  const Json json = {{"split", split},         {"samples", e.samples},
                     {"accuracy", e.accuracy}, {"loss", e.loss},
                     {"classes", classes},     {"confusion", confusion}};
  fmt::print("{}\n", json.dump(2));
}

int run_eval(const Typed& typed) {
  const auto known = data::kSplitNames;
  const auto found = std::find(known.begin(), known.end(), typed.split);
  if (found == known.end()) {
    throw UsageError(fmt::format(
        "--split: expected train, validation or test, got {}", typed.split));
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
      open_run_data("eval", config.data, run.path() + "/data");
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
                       .stop = interrupted});
  if (!result) throw Interrupted();
  const auto& names = data::find_task(config.data.task).classes;
  typed.run.json ? print_json(*result, typed.split, names)
                 : print_text(*result, typed.split, names);
  return kOk;
}

}  // namespace

Command add_eval(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "eval", "Accuracy, loss and confusion of a run's best weights");
  app->allow_extras();
  app->footer("Example:\n  luna eval runs/listops --split validation --json");
  const auto typed = std::make_shared<Typed>();
  app->add_option("run", typed->folder, "The run's folder")
      ->required()
      ->type_name("RUN");
  app->add_option("--split", typed->split, "train, validation or test (test)");
  app->add_option("--batch", typed->batch, "Samples in a batch (the run's)");
  add_run_options(*app, typed->run);
  return {app, [typed] {
            return unless_interrupted("eval", [&] { return run_eval(*typed); });
          }};
}

}  // namespace luna::cli
