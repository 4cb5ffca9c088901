#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "interrupt.h"
#include "io/folder_config.h"
#include "luna/distill/conversion.h"
#include "luna/io/atomic.h"
#include "luna/io/text_file.h"
#include "luna/nn/attention_registry.h"
#include "luna/report/conversion_page.h"
#include "luna/report/table.h"
#include "luna/train/run_model.h"
#include "out_folder.h"
#include "progress.h"
#include "run_options.h"
#include "settings.h"

namespace luna::cli {
namespace {

namespace fs = std::filesystem;

struct Typed {
  distill::ConversionOptions conversion{};
  std::vector<std::string> set{};
  bool no_bases = false;
  RunOptions run{};
  std::vector<const CLI::Option*> of_task{};  ///< make sense with --task alone
};

/// A model of transformers has no such section, unless luna wrote it.
bool is_converted(const std::string& folder) {
  return fs::exists(fs::path(folder) / "conversion.json") ||
         io::folder_config(folder).contains("luna");
}

void check_target(const distill::ConversionOptions& options) {
  std::error_code error;
  if (fs::equivalent(options.model, options.out, error)) {
    throw UsageError("--out: expected another folder than --model, got " +
                     options.out);
  }
  prepare_out_folder(options.out, "luna convert",
                     [&] { return is_converted(options.out); });
}

/// Without a task there is nothing to train on.
int swap_only(const distill::ConversionOptions& options) {
  // A run's weights as a folder, which goes away with `source`.
  std::optional<io::AtomicFolder> source;
  std::string folder = options.model;
  if (train::RunFolder(options.model).holds_run()) {
    folder = source.emplace(options.out).file("original");
    train::open_trained(options.model).write(folder);
  }
  const auto model = convert::HuggingFaceModel::open(
      folder, {.attention = options.attention,
               .attention_options = options.attention_options});
  model.write(options.out);
  fmt::print("{}: {} with {} attention, {} new tensors, {} without a use{}\n",
             options.out, model.architecture(), options.attention,
             model.fresh().size(), model.unused().size(),
             model.unused().empty()
                 ? ""
                 : fmt::format(": {}", fmt::join(model.unused(), ", ")));
  return kOk;
}

int run(Typed typed) {
  distill::ConversionOptions& options = typed.conversion;
  try {
    options.attention_options =
        read_settings(options.attention,
                      nn::find_attention(options.attention).options, typed.set);
  } catch (const c10::Error& error) {
    throw UsageError(std::string("--attention: ") +
                     error.what_without_backtrace());
  }
  if (options.task.empty()) {
    for (const CLI::Option* option : typed.of_task) {
      if (option->count() == 0) continue;
      throw UsageError(option->get_name() +
                       ": expected --task with it, nothing is trained without "
                       "one");
    }
    if (!typed.run.data.empty()) {
      throw UsageError("--data: expected --task with it, got none");
    }
  }
  check_target(options);
  if (options.task.empty()) return swap_only(options);
  if (typed.run.data.empty()) {
    throw UsageError(
        "--task: expected --data with it, the folder of its files");
  }
  options.data = typed.run.data;
  options.bases = !typed.no_bases;
  options.device = settle_device(typed.run);
  catch_interrupts();
  Progress bar;
  options.say = [&](const std::string& text) { bar.note(text); };
  options.stop = interrupted;
  const distill::Conversion conversion = distill::convert_model(options);
  if (conversion.interrupted) throw Interrupted();
  const std::string json = distill::conversion_json(conversion);
  io::write_text(options.out + "/conversion.json", json);
  io::write_text(options.out + "/conversion.html",
                 report::conversion_page(conversion, options.out).html());
  if (typed.run.json) {
    fmt::print("{}", json);
  } else {
    fmt::print("{}\n{}: {}\n", report::milestones_table(conversion).text(),
               options.out, "the model, conversion.json and conversion.html");
  }
  return kOk;
}

}  // namespace

Command add_convert(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "convert",
      "Make a softmax BERT or ViT linear and keep its accuracy: swap the "
      "attention, "
      "teach it the softmax rows (stage 1), train all on the task and on what "
      "the softmax model makes of it (stage 2)");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  luna convert --model bert-sst2 --task sst2 --data glue --out linear\n"
      "  luna convert --model bert --attention universal --out linear\n"
      "  luna convert --model runs/vit --task cifar10 --data DIR --out linear\n"
      "  luna convert --model runs/sst2 --attention softmax --out bert-sst2\n\n"
      "Without --task the attention is swapped and nothing is trained.");
  const auto typed = std::make_shared<Typed>();
  distill::ConversionOptions& o = typed->conversion;
  app->add_option("--model", o.model,
                  "A Hugging Face folder, or a run of luna train that started "
                  "from one or trained a ViT")
      ->required();
  app->add_option("--out", o.out,
                  "Folder to make; one of luna convert is replaced")
      ->required();
  app->add_option("--attention", o.attention,
                  "A head-level mechanism of luna info; softmax copies the "
                  "model (universal)");
  app->add_option("--set", typed->set, "An option of the mechanism; repeatable")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("NAME=VALUE");
  app->add_option("--task", o.task,
                  "A task of GLUE or sick for a BERT, cifar10 for a ViT");
  const auto of_task = [&](CLI::Option* option) {
    typed->of_task.push_back(option);
    return option;
  };
  of_task(app->add_option("--start", o.start,
                          "Of phi: softmax or random (softmax)"))
      ->check(CLI::IsMember({"softmax", "random"}));
  of_task(app->add_flag("--no-bases", typed->no_bases,
                        "Stage 1 learns phi alone, no bases for each head's "
                        "queries and keys"));
  of_task(app->add_option(
              "--fit-steps", o.fit_steps,
              "Steps that fit the start to the model's attention (600)"))
      ->check(at_least(0));
  of_task(
      app->add_option("--fit-lr", o.fit_lr, "Learning rate of the fit (1e-2)"))
      ->check(at_least(0));
  of_task(app->add_option("--stage1-loss", o.stage_one_loss,
                          "rows (cross-entropy) or outputs (squared error) "
                          "(rows)"))
      ->check(CLI::IsMember({"rows", "outputs"}));
  of_task(app->add_option("--stage1-epochs", o.stage_one_epochs, "Passes (1)"))
      ->check(at_least(0));
  of_task(
      app->add_option("--stage1-lr", o.stage_one_lr, "Learning rate (1e-3)"))
      ->check(at_least(0));
  of_task(app->add_option("--stage2-epochs", o.stage_two_epochs,
                          "Passes at most (3); 0: no stage 2"))
      ->check(at_least(0));
  of_task(
      app->add_option("--stage2-lr", o.stage_two_lr, "Learning rate (3e-5)"))
      ->check(at_least(0));
  of_task(
      app->add_option("--patience", o.patience,
                      "Stage 2 ends after so many validations without a better "
                      "one, four an epoch (4); 0: never"))
      ->check(at_least(0));
  of_task(app->add_option("--stage2-teacher", o.teacher_weight,
                          "Share of the softmax model's logits in the loss, "
                          "0 to 1; labels have the rest (0.5)"))
      ->check(CLI::Range(0.0, 1.0));
  of_task(app->add_option("--stage2-temperature", o.temperature,
                          "Both models' logits are divided by it (2)"))
      ->check(CLI::PositiveNumber);
  of_task(app->add_option("--stage2-states", o.states_weight,
                          "Weight of the distance from the softmax model's "
                          "hidden states, added to the loss (1)"))
      ->check(at_least(0));
  of_task(app->add_option("--batch", o.batch, "Samples in a batch (32)"))
      ->check(at_least(1));
  of_task(
      app->add_option("--max-length", o.max_length, "Ids in a sequence (128)"))
      ->check(at_least(1));
  of_task(app->add_option("--samples", o.samples,
                          "At most so many in each split; 0: all (0)"))
      ->check(at_least(0));
  of_task(app->add_option("--seed", o.seed, "Of phi, order and dropout (1)"))
      ->check(at_least(0));
  of_task(app->add_option("--autocast", o.autocast, "none or bf16 (none)"))
      ->check(CLI::IsMember({"none", "bf16"}));
  add_run_options(*app, typed->run);
  return {app, [typed] {
            return unless_interrupted("convert", [&] { return run(*typed); });
          }};
}

}  // namespace luna::cli
