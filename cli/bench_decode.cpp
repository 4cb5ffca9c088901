#include "bench_decode.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "interrupt.h"
#include "luna/bench/dtype.h"
#include "luna/io/text_file.h"
#include "luna/report/decode_report.h"
#include "progress.h"
#include "run_options.h"

namespace luna::cli {
namespace {

struct Typed {
  bench::DecodeSettings settings{};
  RunOptions run{};
  std::string out{}, svg{}, load{};
};

bench::DecodeResults measure(Typed& typed) {
  typed.settings.device = settle_device(typed.run).str();
  catch_interrupts();
  Progress progress;
  return bench::decode_bench(
      typed.settings, [&](const std::string& what) { progress.log(what); },
      interrupted);
}

int run(Typed typed) {
  const bench::DecodeResults results =
      typed.load.empty() ? measure(typed)
                         : bench::decode_results_from_json(
                               io::read_text(typed.load), typed.load);
  const std::string json = bench::to_json(results);
  fmt::print("{}", typed.run.json ? json : report::decode_text(results));
  std::fflush(stdout);
  if (!typed.out.empty()) io::write_text(typed.out, json);
  if (!typed.svg.empty()) {
    const std::string drawing = report::svg(report::decode_plot(results),
                                            {.width = 720, .height = 400});
    io::write_text(typed.svg, report::standalone(drawing));
  }
  return interrupted() ? kInterrupted : kOk;
}

}  // namespace

Command add_bench_decode(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand(
      "decode",
      "Time of a token when an encoder-decoder translates, by position");
  app->allow_extras();
  app->footer(
      "Example:\n"
      "  luna bench decode --attention softmax,nested --batch 1 --device "
      "cuda\n\n"
      "Softmax has a cache of keys and values, the others a state of constant "
      "size. On a GPU a step is one CUDA graph.");
  const auto o = std::make_shared<Typed>();
  bench::DecodeSettings& s = o->settings;
  const auto list = [&](const char* name, auto& values, const char* what) {
    app->add_option(name, values, what)->delimiter(',')->take_all();
  };
  list("--attention", s.attentions, "Mechanisms, with commas (all that can)");
  list("--positions", s.positions, "Tokens before it (64,512,2048,8192)");
  list("--batch", s.batches, "Sentences at a time (1,64)");
  app->add_option("--layers", s.layers, "Of each side (6)")->check(at_least(1));
  app->add_option("--width", s.width, "Model width (512)")->check(at_least(1));
  app->add_option("--ffn", s.ffn, "Width of the FFN (2048)")
      ->check(at_least(1));
  app->add_option("--heads", s.heads, "Heads (8)")->check(at_least(1));
  app->add_option("--packed-length", s.memory_length,
                  "Length l of nested's memory (16)")
      ->check(at_least(1));
  app->add_option(
      "--dtype", s.dtype,
      fmt::format("{} (float32)", fmt::join(bench::dtype_names(), ", ")));
  app->add_option("--repeat", s.repeat, "Samples of each (7)")
      ->check(at_least(1));
  app->add_option("--steps", s.steps, "Steps of a sample (16)")
      ->check(at_least(1));
  app->add_option("--cache-limit", s.cache_gib,
                  "GiB that softmax's cache may take; larger ones are left out "
                  "(2)");
  app->add_option("--device", o->run.device, "cpu or cuda (cpu)");
  app->add_option("--threads", o->run.threads, "Threads (all)");
  app->add_flag("--json", o->run.json, "JSON on stdout instead of a table");
  app->add_option("--out", o->out, "Save the results as JSON")
      ->type_name("FILE");
  app->add_option("--svg", o->svg, "Save the plot of time")->type_name("FILE");
  app->add_option("--load", o->load, "Show saved results; measure nothing")
      ->type_name("FILE");
  return {app, [o] { return run(*o); }};
}

}  // namespace luna::cli
