#include "luna/train/translate.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "data/text_lines.h"
#include "interrupt.h"
#include "luna/report/format.h"
#include "luna/train/read_config.h"
#include "luna/train/run_folder.h"
#include "progress.h"
#include "run_options.h"
#include "text/unicode.h"
#include "whole_lines.h"

namespace luna::cli {
namespace {

using Json = nlohmann::ordered_json;
using report::grouped;

struct Typed {
  std::string run{}, out{};
  int64_t beam = 0, max_tokens = 1024;
  std::optional<double> length_penalty{};
  train::TranslateOptions translate{};
  bool verbose = false;
  RunOptions device{};
};

/// A line of the input. Those that are not translated become empty lines, so
/// that lines still belong together.
struct Line {
  std::string text{};
  std::vector<int32_t> ids{};
  std::string skipped{};  ///< why it is not translated
};

/// Lines read at a time: sorted by length among themselves.
constexpr int64_t kBatchesAtATime = 8;

std::vector<Line> prepare(std::span<const std::string_view> lines,
                          const train::OpenTranslator& open,
                          int64_t max_tokens) {
  std::vector<Line> prepared;
  for (const std::string_view text : lines) {
    Line line{.text = std::string(text)};
    if (!text::is_utf8(text)) {
      line.skipped = "not UTF-8";
    } else {
      line.ids = open.tokenizer.encode(data::uniform(text, open.text));
      if (std::ssize(line.ids) > max_tokens) {
        line.skipped = fmt::format("more than {} tokens", grouped(max_tokens));
      }
    }
    prepared.push_back(std::move(line));
  }
  return prepared;
}

/// [rows, tokens] of a sentence, </s> last.
Json attention_json(const train::OpenTranslator& open,
                    const std::vector<int32_t>& ids) {
  const c10::NoGradGuard no_grad;
  auto source = data::make_sources(std::span(&ids, 1), open.specials);
  const auto device = open.model->parameters().front().device();
  source.ids = source.ids.to(device);
  source.lengths = source.lengths.to(device);
  const auto map = open.model->memory_attention(source);
  if (!map) return nullptr;
  Json tokens = Json::array(), rows = Json::array();
  for (const int32_t id : ids) tokens.push_back(open.tokenizer.token(id));
  tokens.push_back(open.tokenizer.token(open.specials.end));
  const at::Tensor host = map->select(0, 0).cpu().to(at::kFloat).contiguous();
  for (int64_t r = 0; r < host.size(0); ++r) {
    const float* const row = host[r].const_data_ptr<float>();
    rows.push_back(std::vector<float>(row, row + host.size(1)));
  }
  return {{"tokens", tokens}, {"rows", rows}};
}

Json line_json(const train::OpenTranslator& open, int64_t number,
               const Line& line, const train::Hypotheses& found,
               int64_t state_bytes) {
  Json json = {{"line", number}, {"source", line.text}};
  if (!line.skipped.empty()) {
    json["skipped"] = line.skipped;
    return json;
  }
  json["translations"] = Json::array();
  for (const models::Hypothesis& hypothesis : found) {
    json["translations"].push_back(
        {{"text", train::line_of(open.tokenizer, hypothesis)},
         {"score", hypothesis.score},
         {"tokens", hypothesis.ids.size()}});
  }
  if (found.empty()) return json;
  json["state_bytes"] = state_bytes;
  if (Json attention = attention_json(open, line.ids); !attention.is_null()) {
    json["memory_attention"] = std::move(attention);
  }
  return json;
}

class Translation {
 public:
  Translation(const Typed& typed, train::OpenTranslator& open)
      : typed_(typed), open_(open), out_(typed.out) {}

  /// False if it was interrupted; then nothing of these lines is written.
  bool add(std::span<const std::string_view> texts) {
    const std::vector<Line> lines = prepare(texts, open_, typed_.max_tokens);
    std::vector<std::vector<int32_t>> sentences;
    for (const Line& line : lines) {
      if (line.skipped.empty() && !line.ids.empty()) {
        sentences.push_back(line.ids);
      }
    }
    models::SearchCost cost;
    const auto found = train::translate(*open_.model, open_.specials, sentences,
                                        typed_.translate, &cost);
    if (!found) return false;
    state_bytes_ = std::max(state_bytes_, cost.state_bytes);
    auto next = found->begin();
    for (const Line& line : lines) {
      const bool done = line.skipped.empty() && !line.ids.empty();
      write(line, done ? *next++ : train::Hypotheses{}, cost.state_bytes);
    }
    return true;
  }

  int64_t lines() const { return number_; }
  int64_t state_bytes() const { return state_bytes_; }

  void tell_skipped() const {
    for (const auto& [why, which] : skipped_) {
      warn("translate", fmt::format("{} left empty, {}: the first is line {}",
                                    which.size() == 1
                                        ? "1 line"
                                        : grouped(std::ssize(which)) + " lines",
                                    why, which.front()));
    }
  }

 private:
  void write(const Line& line, const train::Hypotheses& found,
             int64_t state_bytes) {
    ++number_;
    if (!line.skipped.empty()) skipped_[line.skipped].push_back(number_);
    if (typed_.device.json) {
      const Json json = line_json(open_, number_, line, found, state_bytes);
      out_.write(json.dump(-1, ' ', false, Json::error_handler_t::replace));
      return;
    }
    if (typed_.translate.search.n_best == 1) {
      out_.write(found.empty() ? ""
                               : train::line_of(open_.tokenizer, found[0]));
      return;
    }
    for (const models::Hypothesis& hypothesis : found) {
      out_.write(fmt::format("{}\t{:.6f}\t{}", number_, hypothesis.score,
                             train::line_of(open_.tokenizer, hypothesis)));
    }
  }

  const Typed& typed_;
  train::OpenTranslator& open_;
  WholeLines out_;
  int64_t number_ = 0, state_bytes_ = 0;
  std::map<std::string, std::vector<int64_t>> skipped_{};
};

void settle_search(Typed& typed) {
  const auto config =
      train::read_train_config(train::RunFolder(typed.run).config());
  models::BeamOptions& search = typed.translate.search;
  search.beam = typed.beam > 0 ? typed.beam : config.translation.beam;
  search.length_penalty =
      typed.length_penalty.value_or(config.translation.length_penalty);
  if (search.n_best > search.beam) {
    throw UsageError(
        fmt::format("--n-best: expected at most --beam, {}, got {}",
                    search.beam, search.n_best));
  }
  typed.translate.stop = interrupted;
}

int run(Typed typed) {
  train::OpenTranslator open = train::open_translator(typed.run);
  settle_search(typed);
  open.model->to(settle_device(typed.device));
  const std::string input(std::istreambuf_iterator<char>(std::cin), {});
  const auto lines = data::lines_of(input);
  TORCH_CHECK_VALUE(!lines.empty(),
                    "standard input: expected lines to translate, got none");
  catch_interrupts();
  Translation translation(typed, open);
  const auto total = std::ssize(lines);
  Progress progress;
  const int64_t window = kBatchesAtATime * typed.translate.batch;
  for (int64_t first = 0; first < total; first += window) {
    const bool done = translation.add(
        std::span(lines).subspan(first, std::min(window, total - first)));
    if (!done) {
      progress.note(
          fmt::format("luna translate: interrupted; {} of {} lines are written",
                      grouped(translation.lines()), grouped(total)));
      return kInterrupted;
    }
    const std::string shown = fmt::format(
        "{} of {} lines", grouped(translation.lines()), grouped(total));
    progress.update(
        static_cast<double>(translation.lines()) / static_cast<double>(total),
        shown);
    progress.log(shown);
  }
  translation.tell_skipped();
  if (typed.verbose) {
    progress.note(
        fmt::format("decoder's state: at most {} bytes a sentence "
                    "and beam",
                    grouped(translation.state_bytes())));
  }
  return kOk;
}

}  // namespace

Command add_translate(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "translate", "Translate lines with a run of translation");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  luna translate runs/mt < test.en > test.out.de\n"
      "  luna translate runs/mt --beam 8 --n-best 3 --json < test.en\n\n"
      "Lines come out in the order in which they go in. A line that is not "
      "UTF-8, or too long, comes\nout empty, and a warning says how many did. "
      "What was written when the program ends early is\nwhole lines.");
  const auto o = std::make_shared<Typed>();
  models::BeamOptions& search = o->translate.search;
  app->add_option("run", o->run, "The run's folder")
      ->required()
      ->type_name("RUN");
  app->add_option("--beam", o->beam, "Beams; 1 is greedy (the run's)")
      ->check(at_least(1));
  app->add_option("--length-penalty", o->length_penalty,
                  "Scores are divided by length to this power (the run's)");
  app->add_option("--n-best", search.n_best,
                  "So many of each line, as number, score and text with tabs "
                  "between them (1)")
      ->check(at_least(1));
  app->add_option("--no-repeat-ngram", search.no_repeat_ngram,
                  "No n-gram of so many tokens twice; 0: any (0)")
      ->check(at_least(0));
  app->add_option("--batch", o->translate.batch, "Sentences at a time (64)")
      ->check(at_least(1));
  app->add_option("--max-tokens", o->max_tokens,
                  "Longer lines are not translated (1024)")
      ->check(at_least(1));
  app->add_option("--out", o->out, "A file instead of standard output")
      ->type_name("FILE");
  app->add_flag("--verbose", o->verbose,
                "Say how large the decoder's state was");
  app->add_option("--device", o->device.device, "cpu or cuda (cpu)");
  app->add_option("--threads", o->device.threads, "Threads (all)");
  app->add_flag("--json", o->device.json,
                "A JSON object a line: scores, the size of the state, and what "
                "a memory attends to");
  return {app, [o] { return run(*o); }};
}

}  // namespace luna::cli
