#include "luna/bench/attention_bench.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "bench_decode.h"
#include "command.h"
#include "interrupt.h"
#include "luna/bench/dtype.h"
#include "luna/bench/model_bench.h"
#include "luna/io/atomic.h"
#include "luna/io/text_file.h"
#include "luna/nn/attention_registry.h"
#include "luna/report/bench_report.h"
#include "luna/report/format.h"
#include "progress.h"

namespace luna::cli {
namespace {

using bench::Mode;
using bench::Results;
using bench::Settings;

struct BenchOptions {
  Settings settings;
  std::string mode = "both";
  bool quick = false;
  int threads = 0;
  bool json = false;
  std::string out, html, svg, load, compare;
  double threshold = 15;  // per cent
};

std::string attention_help() {
  std::string text = "Mechanisms, repeatable or with commas (all of them):";
  for (const nn::AttentionInfo& info : nn::attentions()) {
    text += fmt::format("\n  {}: {}", info.name, info.summary);
  }
  return text;
}

void choose(const std::string& option, const std::string& value,
            const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  throw UsageError(fmt::format("{}: expected one of {}, got {}", option,
                               config::known_and_nearest(value, known), value));
}

/// A model has its own shapes, and is only run forward.
void refuse_with_model(const CLI::App& app) {
  for (const char* name : {"--heads", "--width", "--mode", "--causal",
                           "--packed-length", "--plain"}) {
    if (app.get_option(name)->count() > 0) {
      throw UsageError(fmt::format("expected no {} with --model", name));
    }
  }
}

/// What was typed, over the defaults of a quick or a full run.
Settings settle(const CLI::App& app, const BenchOptions& options) {
  const Settings& typed = options.settings;
  const bool model = !typed.model.empty();
  if (model) refuse_with_model(app);
  Settings settings = model           ? bench::model_settings(options.quick)
                      : options.quick ? bench::quick_settings()
                                      : Settings{};
  const auto take = [&](const char* name, auto Settings::*field) {
    if (app.get_option(name)->count() > 0) settings.*field = typed.*field;
  };
  take("--model", &Settings::model);
  take("--tokens", &Settings::tokens);
  take("--heads", &Settings::heads);
  take("--width", &Settings::width);
  take("--lengths", &Settings::lengths);
  take("--attention", &Settings::attentions);
  take("--causal", &Settings::causal);
  take("--packed-length", &Settings::packed_length);
  take("--dtype", &Settings::dtype);
  take("--repeat", &Settings::repeat);
  take("--time-budget", &Settings::budget);
  take("--plain", &Settings::plain);
  if (!model && app.get_option("--lengths")->count() == 0) {
    std::erase_if(settings.lengths, [&](std::int64_t n) {
      return settings.tokens < n || settings.tokens % n != 0;
    });
    if (settings.lengths.empty()) settings.lengths = {settings.tokens};
  }
  if (options.mode == "forward") settings.modes = {Mode::kForward};

  std::vector<std::string> known;
  for (const auto& info : nn::attentions()) {
    if (!model || info.traits.head_level) known.push_back(info.name);
  }
  for (const auto& name : settings.attentions) {
    choose("--attention", name, known);
  }
  choose("--mode", options.mode, {"forward", "both"});
  choose("--dtype", settings.dtype, bench::dtype_names());
  choose("--plain", settings.plain, {"some", "one", "all", "none"});
  try {
    bench::check_settings(settings);
  } catch (const c10::Error& error) {
    throw UsageError(error.what_without_backtrace());
  }
  return settings;
}

/// A line for every length and mode of the first runs, one a round later.
std::string log_line(const bench::Progress& p) {
  if (p.round > 0) return fmt::format("round {}", p.round);
  return fmt::format("first runs: n = {}, {}", report::grouped(p.length),
                     mode_name(p.mode));
}

Results measure(const Settings& settings) {
  catch_interrupts();
  Progress progress;
  bench::Hooks hooks;
  hooks.stop = interrupted;
  std::string last;
  hooks.progress = [&](const bench::Progress& p) {
    const std::string line = log_line(p);
    if (line != last) progress.log(line);
    last = line;
    progress.update(p.share,
                    fmt::format("n = {}, {}: {}", report::grouped(p.length),
                                mode_name(p.mode), p.attention));
  };
  return settings.model.empty() ? bench::bench_attention(settings, hooks)
                                : bench::bench_model(settings, hooks);
}

void write_files(const BenchOptions& options, const Results& results) {
  const auto write = [](const std::string& path, auto&& text_of) {
    if (path.empty()) return;
    io::write_text(path, text_of());
    fmt::print(stderr, "wrote {}\n", path);
  };
  write(options.out, [&] { return bench::to_json(results); });
  write(options.html, [&] { return report::bench_page(results); });
  write(options.svg, [&] {
    const Mode mode = results.settings.modes.back();
    return report::standalone(
        report::svg(report::time_plot(results, mode), {860, 430}));
  });
}

/// Prints the comparison; true if something got slower.
bool got_slower(const Results& before, const Results& after,
                const BenchOptions& options) {
  const double threshold = options.threshold / 100;
  const auto changes = bench::compare(before, after, threshold);
  TORCH_CHECK(!changes.empty(), "--compare ", options.compare,
              ": expected a run with something in common with this one, got "
              "none of its lengths, modes and mechanisms");
  for (const std::string& line : bench::differences(before, after)) {
    fmt::print(stderr, "not alike: {}\n", line);
  }
  fmt::print(options.json ? stderr : stdout, "\n{}",
             report::comparison_text(changes, threshold));
  return std::any_of(changes.begin(), changes.end(),
                     [](const bench::Change& c) { return c.slower; });
}

int run_bench(const CLI::App& app, const BenchOptions& options) {
  const Settings settings = settle(app, options);
  if (options.threads < 0 || options.threshold < 0) {
    throw UsageError("--threads and --threshold: expected no negative number");
  }
  // Before minutes are spent: can the results be written, the old ones read?
  for (const std::string& path : {options.out, options.html, options.svg}) {
    if (path.empty()) continue;
    io::make_folders_above(path);
    io::check_writable(path);
  }
  Results before;
  if (!options.compare.empty()) {
    before = bench::results_from_json(io::read_text(options.compare),
                                      options.compare);
  }
  if (options.threads > 0) at::set_num_threads(options.threads);

  const Results results =
      options.load.empty()
          ? measure(settings)
          : bench::results_from_json(io::read_text(options.load), options.load);
  fmt::print("{}", options.json ? bench::to_json(results)
                                : report::bench_text(results));
  std::fflush(stdout);
  write_files(options, results);
  if (interrupted()) {
    fmt::print(stderr, "luna bench: interrupted; kept what was done\n");
    return kInterrupted;
  }
  if (!options.compare.empty() && got_slower(before, results, options)) {
    return kFailure;
  }
  return kOk;
}

}  // namespace

Command add_bench(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "bench", "Time and memory of attention on this machine, beside softmax");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  luna bench --quick --html bench.html\n"
      "  luna bench --attention universal --lengths 512,4096 --out new.json\n"
      "  luna bench --attention universal --compare old.json\n"
      "  luna bench --model path/to/bert --lengths 128,512\n\n"
      "A length n is run as a batch of tokens / n. Times are medians; the "
      "mechanisms take turns.\nExit code 1 if --compare finds something "
      "slower, 130 after Ctrl-C (what was done is kept).");
  const auto o = std::make_shared<BenchOptions>();
  Settings& s = o->settings;
  app->add_flag("--quick", o->quick,
                "4,096 tokens and fewer runs: under a minute on two cores");
  app->add_option("--model", s.model,
                  "A whole BERT or ViT, forward, with softmax beside its own "
                  "attention (or universal): a Hugging Face folder")
      ->type_name("DIR");
  app->add_option("--attention", s.attentions, attention_help())
      ->delimiter(',')
      ->take_all()
      ->type_name("NAME");
  app->add_option("--lengths", s.lengths,
                  "Sequence lengths, with commas (128,256,...,8192)")
      ->delimiter(',')
      ->take_all()
      ->type_name("N");
  app->add_option("--tokens", s.tokens, "Tokens in all (8192)");
  app->add_option("--heads", s.heads, "Heads (8)");
  app->add_option("--width", s.width, "Width of a head (64)");
  app->add_option("--mode", o->mode, "forward, or both: with backward (both)");
  app->add_flag("--causal", s.causal, "Causal attention");
  app->add_option("--packed-length", s.packed_length,
                  "Length l of nested's memory (16)");
  app->add_option(
      "--dtype", s.dtype,
      fmt::format("{} (float32)", fmt::join(bench::dtype_names(), ", ")));
  app->add_option("--plain", s.plain,
                  "Lengths at which to run the slow plain formula of "
                  "universal: some, one, all, none (some)");
  app->add_option("--threads", o->threads, "Threads (all)");
  app->add_option("--repeat", s.repeat, "Runs of each, at most (7)");
  app->add_option("--time-budget", s.budget, "Seconds in all, about (180)");
  app->add_flag("--json", o->json, "JSON on stdout instead of a table");
  app->add_option("--out", o->out, "Save the results as JSON")
      ->type_name("FILE");
  app->add_option("--html", o->html, "Save a page with plots")
      ->type_name("FILE");
  app->add_option("--svg", o->svg, "Save the plot of time alone")
      ->type_name("FILE");
  app->add_option("--load", o->load, "Show saved results; measure nothing")
      ->type_name("FILE");
  app->add_option("--compare", o->compare,
                  "Compare with saved results; exit 1 if slower")
      ->type_name("FILE");
  app->add_option("--threshold", o->threshold,
                  "Per cent that count as slower, beyond the spread (15)");
  app->require_subcommand(0, 1);
  const Command decode = add_bench_decode(*app);
  return {app, [app, o, decode] {
            return decode.app->parsed() ? decode.run() : run_bench(*app, *o);
          }};
}

}  // namespace luna::cli
