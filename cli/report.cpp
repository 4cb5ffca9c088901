#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>

#include "command.h"
#include "luna/io/text_file.h"
#include "luna/report/keep_run.h"
#include "luna/report/run_report.h"

namespace luna::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string html, markdown, keep;
  bool json = false;
};

/// By run: where it is kept, under its own name.
std::map<std::string, std::string> folders_to_keep(
    const std::vector<std::string>& folders, const std::string& keep) {
  std::map<std::string, std::string> kept, by_name;
  if (keep.empty()) return kept;
  for (const std::string& folder : folders) {
    const std::string name =
        std::filesystem::canonical(folder).filename().string();
    const auto [other, is_new] = by_name.emplace(name, folder);
    if (!is_new) {
      throw UsageError(
          fmt::format("--keep: expected runs of different names, got {} and {}",
                      other->second, folder));
    }
    kept[folder] = (std::filesystem::path(keep) / name).string();
    report::check_keep(folder, kept[folder]);
  }
  return kept;
}

int run_report(const ReportOptions& options) {
  if (options.runs.empty()) {
    throw UsageError("expected at least one run folder of luna train");
  }
  const std::vector<std::string> folders = report::find_runs(options.runs);
  std::string html = options.html;
  if (html.empty()) {
    html = folders.size() == 1
               ? (std::filesystem::path(folders[0]) / "report.html").string()
               : "report.html";
  }
  const auto kept_folders = folders_to_keep(folders, options.keep);
  for (const std::string& path : {html, options.markdown}) {
    if (!path.empty()) io::check_writable(path);
  }
  std::vector<report::Run> runs;
  for (const std::string& folder : folders) {
    runs.push_back(report::read_run(folder));
  }
  const report::RunReport all = report::make_report(std::move(runs));
  fmt::print(
      "{}", options.json ? report::report_json(all) : report::report_text(all));
  std::fflush(stdout);
  const report::Page page = report::report_page(all);
  io::write_text(html, page.html());
  fmt::print(stderr, "wrote {}\n", html);
  if (!options.markdown.empty()) {
    io::write_text(options.markdown, page.markdown());
    fmt::print(stderr, "wrote {}\n", options.markdown);
  }
  if (!options.keep.empty()) {
    for (const auto& [folder, kept] : kept_folders) {
      report::keep_run(folder, kept);
    }
    fmt::print(stderr, "kept {} runs in {}\n", kept_folders.size(),
               options.keep);
  }
  return kOk;
}

}  // namespace

Command add_report(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "report", "Training runs as one page: results, curves, learned kernels");
  app->footer(
      "Examples:\n"
      "  luna report runs/image-universal\n"
      "  luna report runs/* --html lra.html --markdown lra.md\n"
      "  luna report runs --keep results   # to be committed\n\n"
      "Runs that differ by their seed alone are reported together. A run that "
      "is not finished is shown with what it has.");
  app->allow_extras();
  const auto o = std::make_shared<ReportOptions>();
  app->add_option("RUN", o->runs,
                  "Run folders of luna train, or folders with some inside")
      ->type_name("FOLDER");
  app->add_option("--html,--out", o->html,
                  "The page (report.html in the run's folder; in this folder "
                  "for several runs)")
      ->type_name("FILE");
  app->add_option("--markdown", o->markdown, "Words and tables as Markdown too")
      ->type_name("FILE");
  app->add_option("--keep", o->keep,
                  "Copy what this report reads of the runs, small: without "
                  "samples, and of the weights the feature maps alone")
      ->type_name("DIR");
  app->add_flag(
      "--json", o->json,
      "Every number of the page as JSON on stdout, instead of tables");
  return {app, [o] { return run_report(*o); }};
}

}  // namespace luna::cli
