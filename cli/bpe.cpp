#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <vector>

#include "command.h"
#include "data/text_lines.h"
#include "interrupt.h"
#include "luna/report/format.h"
#include "luna/text/bpe.h"
#include "progress.h"
#include "text/unicode.h"

namespace luna::cli {
namespace {

namespace fs = std::filesystem;
using report::grouped;

struct Options {
  std::vector<std::string> files{};
  std::string out{};
  text::BpeOptions learn{};
};

void stop_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

int run(Options options) {
  const auto start = std::chrono::steady_clock::now();
  catch_interrupts();
  Progress progress;
  text::BpeLearner learner;
  int64_t texts = 0, bytes = 0, left_out = 0;
  for (const std::string& file : options.files) {
    progress.log("reading " + file);
    data::each_text(file, [&](std::string_view line) {
      stop_if_interrupted();
      if (!text::is_utf8(line)) {
        ++left_out;
        return;
      }
      learner.add(line);
      ++texts;
      bytes += std::ssize(line);
    });
  }
  options.learn.progress = [&](int64_t done, int64_t total) {
    stop_if_interrupted();
    progress.update(static_cast<double>(done) / static_cast<double>(total),
                    "learning");
  };
  progress.log("learning " + grouped(options.learn.merges) + " merges");
  const text::Bpe bpe = learner.learn(options.learn);
  fs::create_directories(options.out);
  const std::string file = (fs::path(options.out) / "tokenizer.json").string();
  bpe.save(file);
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  fmt::print("{}: {} tokens, {} merges\n", file, grouped(bpe.size()),
             grouped(bpe.merges()));
  if (bpe.merges() < options.learn.merges) {
    fmt::print("fewer merges than asked for: no other pair occurs {} times\n",
               options.learn.minimum_count);
  }
  fmt::print("from {} lines, {} distinct words, {} bytes, in {:.1f} s\n",
             grouped(texts), grouped(learner.distinct_words()), grouped(bytes),
             seconds.count());
  if (left_out > 0) {
    fmt::print("left out: {} lines that are not UTF-8\n", grouped(left_out));
  }
  return kOk;
}

}  // namespace

Command add_bpe(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "bpe", "Learn byte pairs from text and write a tokenizer.json");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  luna bpe train.en train.de --merges 8000 --out tokenizer\n"
      "  luna bpe corpus.tsv.xz --out tokenizer\n"
      "  luna tokenize tokenizer < train.en\n\n"
      "All files together make one vocabulary; for one of each language, call "
      "it for each.");
  const auto options = std::make_shared<Options>();
  app->add_option("files", options->files,
                  "Lines of text: plain, .gz or .xz; of a .tsv all columns")
      ->required()
      ->take_all()
      ->type_name("FILE...");
  app->add_option("--out", options->out, "Folder for tokenizer.json")
      ->required()
      ->type_name("FOLDER");
  app->add_option("--merges", options->learn.merges,
                  "Pairs to join; 256 bytes and the special tokens come on "
                  "top (8000)")
      ->check(at_least(0));
  app->add_option("--minimum-count", options->learn.minimum_count,
                  "Join no pair that is rarer (2)")
      ->check(at_least(1));
  app->add_option("--special", options->learn.special_tokens,
                  "Tokens that no text makes (<pad> <s> </s>)")
      ->take_all()
      ->type_name("TOKEN...");
  return {app, [options] {
            try {
              return run(*options);
            } catch (const Interrupted&) {
              fmt::print(stderr, "luna bpe: interrupted; wrote nothing\n");
              return static_cast<int>(kInterrupted);
            }
          }};
}

}  // namespace luna::cli
