#include "data_translation.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/text_lines.h"
#include "interrupt.h"
#include "luna/data/translation.h"
#include "luna/io/atomic.h"
#include "luna/io/text_file.h"
#include "luna/report/format.h"
#include "luna/report/table.h"
#include "luna/version.h"
#include "out_folder.h"
#include "progress.h"

namespace luna::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using report::grouped;

constexpr const char* kFacts = "translation.json";

struct Options {
  std::vector<std::string> train{}, validation{}, test{};
  std::string out{}, tokenizer{};
  text::BpeOptions bpe{};
  data::ParallelOptions text{};
  int64_t max_tokens = 256;
};

void check_target(const std::string& out) {
  prepare_out_folder(out, "luna data translation",
                     [&] { return is_translation_folder(out); });
}

/// "12 duplicates, 3 too long", or nothing.
std::string left_out_text(const Json& left_out) {
  std::string shown;
  for (const auto& [reason, count] : left_out.items()) {
    if (count == 0) continue;
    shown += fmt::format("{}{} {}", shown.empty() ? "" : ", ",
                         grouped(count.get<int64_t>()), reason);
  }
  return shown;
}

report::Table splits_table(const Json& splits) {
  report::Table table({{"split", false},
                       {"read", true},
                       {"kept", true},
                       {"source tokens", true},
                       {"target tokens", true},
                       {"left out", false}});
  for (const auto& [name, split] : splits.items()) {
    const auto count = [&](const char* key) {
      return grouped(split.at(key).get<int64_t>());
    };
    table.add_row({name, count("read"), count("kept"), count("source_tokens"),
                   count("target_tokens"), left_out_text(split["left_out"])});
  }
  return table;
}

std::string facts_text(const std::string& folder, const Json& facts) {
  return fmt::format("{}{}: vocabulary {}\n",
                     splits_table(facts.at("splits")).text(), folder,
                     grouped(facts.at("vocabulary").get<int64_t>()));
}

/// "SOURCE,TARGET" or one tsv.
void add_source(const std::string& option, const std::string& files,
                data::ParallelText& text) {
  const size_t comma = files.find(',');
  if (comma != std::string::npos) {
    text.add_files(files.substr(0, comma), files.substr(comma + 1));
  } else if (data::is_tsv(files)) {
    text.add_tsv(files);
  } else {
    throw UsageError(fmt::format(
        "{}: expected SOURCE,TARGET or a .tsv file, got {}", option, files));
  }
}

struct Split {
  std::string name{};
  std::vector<std::string> files{};
  data::ParallelText text{};
};

Split read_split(const std::string& name, const std::vector<std::string>& files,
                 data::ParallelOptions options, Progress& progress) {
  Split split{name, files, data::ParallelText(options)};
  for (const std::string& file : files) {
    if (interrupted()) throw Interrupted();
    progress.log("reading " + file);
    add_source("--" + name, file, split.text);
  }
  return split;
}

std::vector<Split> read_splits(const Options& options, Progress& progress) {
  // What is translated to be judged is judged as it is.
  data::ParallelOptions whole = options.text;
  whole.drop_duplicates = false;
  whole.max_characters = 0;
  whole.max_ratio = 0;
  std::vector<Split> splits;
  splits.push_back(read_split("train", options.train, options.text, progress));
  if (!options.validation.empty()) {
    splits.push_back(
        read_split("validation", options.validation, whole, progress));
  }
  if (!options.test.empty()) {
    splits.push_back(read_split("test", options.test, whole, progress));
  }
  return splits;
}

text::Bpe get_tokenizer(const Options& options, const data::ParallelText& text,
                        Progress& progress) {
  if (!options.tokenizer.empty()) return text::Bpe::open(options.tokenizer);
  text::BpeLearner learner;
  for (const auto& [source, target] : text.pairs()) {
    learner.add(source);
    learner.add(target);
  }
  progress.log("learning " + grouped(options.bpe.merges) + " merges");
  text::BpeOptions learn = options.bpe;
  learn.progress = [&](int64_t done, int64_t total) {
    if (interrupted()) throw Interrupted();
    progress.update(static_cast<double>(done) / static_cast<double>(total),
                    "learning");
  };
  return learner.learn(learn);
}

int run(const Options& options) {
  check_target(options.out);
  catch_interrupts();
  Progress progress;
  const std::vector<Split> splits = read_splits(options, progress);
  const text::Bpe tokenizer =
      get_tokenizer(options, splits.front().text, progress);
  data::translation_specials("--tokenizer", tokenizer);
  io::AtomicFolder folder(options.out);
  tokenizer.save(folder.file("tokenizer.json"));
  const fs::path out(options.out);
  Json facts = {
      {"luna", version()},
      {"name",
       (out.has_filename() ? out : out.parent_path()).filename().string()},
      {"reverse", options.text.reverse},
      {"vocabulary", tokenizer.size()},
      {"text",
       {{"nfc", options.text.nfc},
        {"squeeze_space", options.text.squeeze_space},
        {"plain_punctuation", options.text.plain_punctuation}}},
      {"splits", Json::object()}};
  for (const Split& split : splits) {
    if (interrupted()) throw Interrupted();
    progress.log("encoding " + split.name);
    const bool train = split.name == "train";
    int64_t too_many = 0;
    const auto data = data::TranslationData::encode(
        split.text, tokenizer, train ? options.max_tokens : 0, too_many);
    auto reasons = data::dropped(split.text.counts());
    reasons.emplace_back("too many tokens", too_many);
    Json left_out = Json::object();
    std::string why;
    for (const auto& [reason, count] : reasons) {
      left_out[reason] = count;
      if (count > 0) why += fmt::format("; {}: {}", reason, count);
    }
    TORCH_CHECK_VALUE(data.size() > 0, "--", split.name,
                      ": expected a pair to keep, got none of ",
                      split.text.counts().read, " read", why);
    data.save(folder.file(split.name + ".safetensors"));
    facts["splits"][split.name] = {{"files", split.files},
                                   {"read", split.text.counts().read},
                                   {"kept", data.size()},
                                   {"left_out", left_out},
                                   {"source_tokens", data.source_tokens()},
                                   {"target_tokens", data.target_tokens()}};
  }
  io::write_text(folder.file(kFacts), facts.dump(2) + "\n");
  if (interrupted()) throw Interrupted();
  folder.commit();
  fmt::print("{}", facts_text(options.out, facts));
  return kOk;
}

}  // namespace

bool is_translation_folder(const std::string& path) {
  return fs::exists(fs::path(path) / kFacts);
}

int show_translation(const std::string& path, bool json) {
  const std::string file = (fs::path(path) / kFacts).string();
  try {
    const Json facts = Json::parse(io::read_text(file));
    fmt::print("{}", json ? facts.dump(2) + "\n" : facts_text(path, facts));
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(
        false, file,
        ": expected what luna data translation writes, got: ", error.what());
  }
  return kOk;
}

Command add_data_translation(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "translation", "Read parallel text and write it as ids for training");
  app->footer(
      "Example:\n"
      "  luna data translation --train train.en.gz,train.de.gz\n"
      "    --train more.tsv.xz --validation val.en,val.de --out data/en-de\n"
      "\nFiles are plain, .gz or .xz: two with lines that belong together, or "
      "a .tsv of two columns. Learns byte pairs from the train split (or takes "
      "--tokenizer) and writes tokenizer.json, SPLIT.safetensors and what was "
      "left out and why, translation.json; or nothing.");
  const auto o = std::make_shared<Options>();
  const auto add_files = [&](const char* name, std::vector<std::string>& files,
                             const char* what) {
    return app->add_option(name, files, what)
        ->take_all()
        ->allow_extra_args(false)
        ->type_name("SOURCE,TARGET|TSV");
  };
  add_files("--train", o->train, "To learn from; more than once for more")
      ->required();
  add_files("--validation", o->validation, "To select by");
  add_files("--test", o->test, "To judge by");
  app->add_option("--out", o->out, "Folder to write")
      ->required()
      ->type_name("FOLDER");
  CLI::Option* given =
      app->add_option("--tokenizer", o->tokenizer,
                      "A tokenizer.json of luna bpe, or its folder")
          ->type_name("PATH");
  app->add_option("--merges", o->bpe.merges, "Pairs to learn (8000)")
      ->check(at_least(0))
      ->excludes(given);
  app->add_option("--max-tokens", o->max_tokens,
                  "Leave out pairs of train with more in a side; 0: none (256)")
      ->check(at_least(0));
  app->add_option("--max-characters", o->text.max_characters,
                  "The same in characters, before anything is learnt (2000)")
      ->check(at_least(0));
  app->add_option("--max-ratio", o->text.max_ratio,
                  "Leave out pairs of train of which one side is so many times "
                  "longer; 0: none (0)");
  app->add_flag_callback(
      "--keep-duplicates", [o] { o->text.drop_duplicates = false; },
      "Keep pairs of train that occurred before");
  app->add_flag("--reverse", o->text.reverse,
                "The other direction: targets are translated into sources");
  app->add_flag("--plain-punctuation", o->text.plain_punctuation,
                "Quotation marks and dashes as ASCII has them, on both sides");
  app->add_flag_callback(
      "--no-nfc", [o] { o->text.nfc = false; },
      "Leave Unicode as it is composed");
  app->add_flag_callback(
      "--no-squeeze", [o] { o->text.squeeze_space = false; },
      "Leave white space as it is");
  return {app, [o] { return run(*o); }};
}

}  // namespace luna::cli
