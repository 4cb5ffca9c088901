// What a subcommand is to the program: options it adds, and what it runs.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>

namespace luna::cli {

enum ExitCode { kOk = 0, kFailure = 1, kUsage = 2, kInterrupted = 130 };

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;  ///< after the options were read
};

/// What the user typed makes no sense: exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A check of an option: "--batch: expected at least 1, got 0".
inline CLI::Validator at_least(double least) {
  return CLI::Validator(
      [least](const std::string& text) {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        if (is_number && value >= least) return std::string();
        const std::string shown = std::to_string(static_cast<int64_t>(least));
        return "expected at least " + shown + ", got " + text;
      },
      "");
}

Command add_info(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_train(CLI::App& program);
Command add_eval(CLI::App& program);
Command add_data(CLI::App& program);
Command add_sweep(CLI::App& program);
Command add_report(CLI::App& program);
Command add_weights(CLI::App& program);
Command add_bpe(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_encode(CLI::App& program);
Command add_convert(CLI::App& program);
Command add_score(CLI::App& program);
Command add_translate(CLI::App& program);
Command add_classify(CLI::App& program);

}  // namespace luna::cli
