#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "command.h"
#include "data_show.h"
#include "data_translation.h"
#include "interrupt.h"
#include "luna/data/packed.h"
#include "luna/data/tasks.h"
#include "luna/io/atomic.h"
#include "luna/report/format.h"
#include "luna/report/table.h"
#include "out_folder.h"
#include "progress.h"
#include "settings.h"

namespace luna::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using report::grouped;

/// What there is of the splits in a folder, or the one file itself.
std::vector<std::string> files_of(const std::string& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const char* split : data::kSplitNames) {
    const std::string file = data::split_file(path, split);
    if (fs::exists(file)) files.push_back(file);
  }
  TORCH_CHECK_VALUE(!files.empty(), path, ": expected ",
                    fmt::format("{}", fmt::join(data::kSplitNames, ".luna, ")),
                    ".luna of luna data pack, got none of them");
  return files;
}

// --- list -------------------------------------------------------------------

std::string sizes_text(const data::Task& task) {
  return fmt::format("{} / {} / {}", grouped(task.samples[0]),
                     grouped(task.samples[1]), grouped(task.samples[2]));
}

int run_list(bool json) {
  if (json) {
    Json all = Json::array();
    for (const data::Task& task : data::tasks()) {
      Json settings = Json::object();
      for (const auto& s : task.settings) {
        std::visit([&](const auto& value) { settings[s.name] = value; },
                   s.default_value);
      }
      all.push_back({{"name", task.name},
                     {"what", task.what},
                     {"how", task.how},
                     {"vocabulary", task.info.vocabulary},
                     {"classes", task.classes},
                     {"pairs", task.info.pairs},
                     {"height", task.info.height},
                     {"width", task.info.width},
                     {"channels", task.info.channels},
                     {"samples", task.samples},
                     {"max_length", task.max_length},
                     {"settings", settings}});
    }
    fmt::print("{}\n", all.dump(2));
    return kOk;
  }
  for (const data::Task& task : data::tasks()) {
    fmt::print("{}\n  {}\n", task.name, task.what);
    fmt::print("  samples   {} (train / validation / test)\n",
               sizes_text(task));
    fmt::print("  classes   {}\n", fmt::join(task.classes, ", "));
    if (task.max_length > 0) {
      fmt::print("  length    cut at {} ids (--max-length)\n",
                 grouped(task.max_length));
    }
    for (const auto& s : task.settings) {
      fmt::print("  --set {}={}: {}\n", s.name,
                 config::to_string(s.default_value), s.help);
    }
    fmt::print("  to get it: {}\n\n", task.how);
  }
  fmt::print("luna data pack TASK --out FOLDER makes what luna train reads.\n");
  return kOk;
}

// --- pack and unpack --------------------------------------------------------

struct PackCommand {
  std::string task{}, out{}, folder{};
  int64_t samples = 0, max_length = -1;
  uint64_t seed = 1;
  bool compress = false;
  std::vector<std::string> set{};
};

/// Only a folder that holds nothing but splits may be replaced as a whole.
void check_target(const std::string& out) {
  prepare_out_folder(out, "luna data pack", [&] {
    const fs::directory_iterator entries(out);
    return std::all_of(begin(entries), end(entries), [](const auto& entry) {
      return entry.path().extension() == ".luna";
    });
  });
}

/// Writes all splits or none.
void write_splits(
    const std::string& out, bool compress,
    const std::vector<std::pair<std::string, std::shared_ptr<data::Dataset>>>&
        splits,
    const std::map<std::string, std::string>& origin, Progress& progress) {
  io::AtomicFolder folder(out);
  for (const auto& [split, dataset] : splits) {
    progress.log(
        fmt::format("writing {}: {} samples", split, grouped(dataset->size())));
    const std::string what = "writing " + split;
    data::write_packed(folder.file(split + ".luna"), *dataset,
                       {.split = split,
                        .compress = compress,
                        .origin = origin,
                        .progress = [&](double share) {
                          if (interrupted()) throw Interrupted();
                          progress.update(share, what);
                        }});
  }
  if (interrupted()) throw Interrupted();
  folder.commit();
}

void print_written(const std::string& out) {
  report::Table table(
      {{"file", false}, {"samples", true}, {"longest", true}, {"bytes", true}});
  for (const std::string& file : files_of(out)) {
    const data::PackedInfo info = data::read_packed_info(file);
    table.add_row({file, grouped(info.samples), grouped(info.longest),
                   grouped(static_cast<int64_t>(fs::file_size(file)))});
  }
  fmt::print("{}", table.text());
}

int run_pack(const PackCommand& command) {
  const auto start = std::chrono::steady_clock::now();
  const data::Task* task = nullptr;
  data::LoadOptions options{.folder = command.folder,
                            .samples = command.samples,
                            .seed = command.seed,
                            .max_length = command.max_length};
  try {
    task = &data::find_task(command.task);
    options.settings = read_settings(task->name, task->settings, command.set);
    const char* const usual = std::getenv("LUNA_DATA");
    if (options.folder.empty() && !task->generated && usual != nullptr) {
      options.folder = usual;
    }
  } catch (const c10::Error& error) {
    throw UsageError(error.what_without_backtrace());
  }
  if (command.samples < 0) {
    throw UsageError(
        fmt::format("--samples: expected 0 or more, got {}", command.samples));
  }
  check_target(command.out);
  catch_interrupts();
  Progress progress;
  std::string last;
  options.progress = [&](double share, const std::string& what) {
    if (interrupted()) throw Interrupted();
    if (what != last) progress.log(what);
    last = what;
    progress.update(share, what);
  };
  const data::Splits splits = data::load_task(task->name, options);
  std::map<std::string, std::string> origin = {{"source", splits.source}};
  if (task->generated || command.samples > 0) {
    origin["seed"] = std::to_string(command.seed);
  }
  if (command.samples > 0) {
    origin["samples"] = std::to_string(command.samples);
  }
  if (command.max_length >= 0) {
    origin["max_length"] = std::to_string(command.max_length);
  }
  for (const auto& [name, value] : options.settings) {
    origin[name] = config::to_string(value);
  }
  write_splits(command.out, command.compress,
               {{"train", splits.train},
                {"validation", splits.validation},
                {"test", splits.test}},
               origin, progress);
  print_written(command.out);
  fmt::print(
      "from {}, in {:.1f} s\n", splits.source,
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count());
  return kOk;
}

int run_unpack(const std::string& from, const std::string& out) {
  check_target(out);
  catch_interrupts();
  Progress progress;
  std::vector<std::pair<std::string, std::shared_ptr<data::Dataset>>> splits;
  std::map<std::string, std::string> origin;
  for (const std::string& file : files_of(from)) {
    if (interrupted()) throw Interrupted();
    progress.log("reading " + file);
    origin = data::read_packed_info(file).origin;
    splits.emplace_back(fs::path(file).stem().string(),
                        data::open_packed(file));
  }
  write_splits(out, /*compress=*/false, splits, origin, progress);
  print_written(out);
  return kOk;
}

// --- info and check ---------------------------------------------------------

Json to_json(const std::string& file, const data::PackedInfo& info) {
  return {{"file", file},
          {"task", info.task.task},
          {"split", info.split},
          {"samples", info.samples},
          {"ids", info.ids},
          {"longest", info.longest},
          {"vocabulary", info.task.vocabulary},
          {"classes", info.task.classes},
          {"pairs", info.task.pairs},
          {"height", info.task.height},
          {"width", info.task.width},
          {"channels", info.task.channels},
          {"compressed", info.compressed},
          {"bytes", fs::file_size(file)},
          {"origin", info.origin}};
}

int run_info(const std::string& path, bool json) {
  if (is_translation_folder(path)) return show_translation(path, json);
  Json all = Json::array();
  for (const std::string& file : files_of(path)) {
    const data::PackedInfo info = data::read_packed_info(file);
    if (json) {
      all.push_back(to_json(file, info));
      continue;
    }
    fmt::print("{}\n", file);
    fmt::print("  task        {}, {}\n", info.task.task, info.split);
    fmt::print("  samples     {}{}\n", grouped(info.samples),
               info.task.pairs ? " pairs" : "");
    fmt::print("  ids         {}, longest sequence {}, vocabulary {}\n",
               grouped(info.ids), grouped(info.longest), info.task.vocabulary);
    fmt::print("  classes     {}\n", info.task.classes);
    if (info.task.height > 0) {
      fmt::print("  pictures    {} x {}{}\n", info.task.height, info.task.width,
                 info.task.channels == 3 ? ", in colour" : "");
    }
    fmt::print("  bytes       {}{}\n",
               grouped(static_cast<int64_t>(fs::file_size(file))),
               info.compressed ? ", compressed" : "");
    for (const auto& [name, value] : info.origin) {
      if (name == "samples") continue;  // at most as many; said above
      fmt::print("  {:<11} {}\n", name, value);
    }
  }
  if (json) fmt::print("{}\n", all.dump(2));
  return kOk;
}

int run_check(const std::vector<std::string>& paths) {
  int code = kOk;
  const auto check = [&](const std::function<void()>& open) {
    try {
      open();
    } catch (const c10::Error& error) {
      code = kFailure;
      std::fflush(stdout);
      fmt::print(stderr, "luna data check: error: {}\n",
                 error.what_without_backtrace());
    }
  };
  for (const std::string& path : paths) {
    check([&] {
      for (const std::string& file : files_of(path)) {
        check([&] {
          const auto dataset = data::open_packed(file);
          fmt::print("{}: intact, {} samples\n", file,
                     grouped(dataset->size()));
        });
      }
    });
  }
  return code;
}

// --- options ----------------------------------------------------------------

std::string task_help() {
  std::string text = "One of";
  for (const data::Task& task : data::tasks()) {
    text += fmt::format("\n{}: {}", task.name, task.what);
  }
  return text;
}

Command add_list(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("list", "The tasks and how to get them");
  app->footer("Example:\n  luna data list");
  const auto json = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "JSON instead of text");
  return {app, [json] { return run_list(*json); }};
}

Command add_pack(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "pack", "Read or generate a task and write it as files for training");
  app->footer(
      "Examples:\n"
      "  luna data pack text --data ~/aclImdb --out data/text\n"
      "  luna data pack image --data ~/cifar-10-batches-bin --out data/image\n"
      "\nWrites train.luna, validation.luna and test.luna into the folder, or "
      "nothing.");
  const auto c = std::make_shared<PackCommand>();
  app->add_option("task", c->task, task_help())->required()->type_name("TASK");
  app->add_option("--out", c->out, "Folder to write")
      ->required()
      ->type_name("FOLDER");
  app->add_option("--data", c->folder,
                  "Where the task's own files are (LUNA_DATA)")
      ->type_name("DIR");
  app->add_option("--samples", c->samples,
                  "At most this many in each split; 0: all (0)");
  app->add_option("--seed", c->seed,
                  "Of what is generated or chosen by --samples (1)");
  app->add_option("--max-length", c->max_length,
                  "Cut sequences to this many ids; 0: not (as the task does)");
  app->add_option("--set", c->set, "NAME=VALUE for a generator; see list")
      ->take_all()
      ->type_name("NAME=VALUE");
  app->add_flag("--compress", c->compress,
                "Small files for carrying around; slower to open");
  return {app, [c] { return run_pack(*c); }};
}

Command add_unpack(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "unpack", "Write compressed files in the form that opens at once");
  app->footer("Example:\n  luna data unpack small/image --out data/image");
  const auto from = std::make_shared<std::string>();
  const auto out = std::make_shared<std::string>();
  app->add_option("path", *from, "File or folder of luna data pack")
      ->required()
      ->type_name("PATH");
  app->add_option("--out", *out, "Folder to write")
      ->required()
      ->type_name("FOLDER");
  return {app, [from, out] { return run_unpack(*from, *out); }};
}

Command add_info_of(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("info", "What a packed file or folder holds");
  app->footer(
      "Examples:\n"
      "  luna data info data/text\n"
      "  luna data info data/en-de");
  const auto path = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  app->add_option("path", *path,
                  "File or folder of luna data pack, or a folder of luna data "
                  "translation")
      ->required()
      ->type_name("PATH");
  app->add_flag("--json", *json, "JSON instead of text");
  return {app, [path, json] { return run_info(*path, *json); }};
}

Command add_check(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("check", "Whether packed files are intact");
  app->footer("Example:\n  luna data check data/text");
  const auto paths = std::make_shared<std::vector<std::string>>();
  app->add_option("path", *paths, "Files or folders of luna data pack")
      ->required()
      ->take_all()
      ->type_name("PATH...");
  return {app, [paths] { return run_check(*paths); }};
}

Command add_show(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand("show", "Samples, readably");
  app->footer(
      "Examples:\n"
      "  luna data show data/text/test.luna --index 7\n"
      "  luna data show data/image/train.luna --png sheet.png");
  const auto o = std::make_shared<ShowOptions>();
  const auto path = std::make_shared<std::string>();
  app->add_option("path", *path, "File of luna data pack (of a folder: train)")
      ->required()
      ->type_name("FILE");
  app->add_option("--index", o->index, "The first sample shown (0)");
  app->add_option("--count", o->count,
                  "How many (1; 64 with --png; 0: to the end)");
  app->add_flag("--full", o->full, "Long texts to their end");
  app->add_option("--png", o->png, "Write the pictures to a contact sheet")
      ->type_name("FILE");
  app->add_flag("--json", o->json, "JSON instead of text");
  return {app, [path, o] {
            show_samples(files_of(*path).front(), *o);
            return static_cast<int>(kOk);
          }};
}

}  // namespace

Command add_data(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "data", "Tasks to learn: read, generate, pack, look at");
  app->allow_extras();
  app->require_subcommand(0, 1);
  app->footer(
      "Examples:\n"
      "  luna data list\n"
      "  luna data pack text --data ~/aclImdb --out data/text\n"
      "  luna data show data/text/test.luna");
  const std::vector<Command> commands = {
      add_list(*app),   add_pack(*app),    add_data_translation(*app),
      add_unpack(*app), add_info_of(*app), add_check(*app),
      add_show(*app)};
  for (const Command& command : commands) command.app->allow_extras();
  return {
      app, [commands] {
        for (const Command& command : commands) {
          if (!command.app->parsed()) continue;
          try {
            return command.run();
          } catch (const Interrupted&) {
            fmt::print(stderr, "luna data {}: interrupted; wrote nothing\n",
                       command.app->get_name());
            return static_cast<int>(kInterrupted);
          }
        }
        std::vector<std::string> names;
        for (const Command& c : commands) names.push_back(c.app->get_name());
        throw UsageError(fmt::format("expected one of {}; see luna data --help",
                                     fmt::join(names, ", ")));
      }};
}

}  // namespace luna::cli
