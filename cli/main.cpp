#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "command.h"
#include "luna/config/options.h"
#include "luna/ops/vector_functions.h"
#include "luna/version.h"

namespace luna::cli {
namespace {

int fail(const std::string& who, std::string message, int code) {
  message.resize(std::min(message.size(), message.find('\n')));
  fmt::print(stderr, "{}: error: {}\n", who, message);
  return code;
}

/// The first argument that no option of the command took, if any.
void refuse_unknown(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return;
  const std::string& first = extras.front();
  const auto commands =
      app.get_subcommands([](const CLI::App*) { return true; });
  if (!first.starts_with("-") && app.get_parent() != nullptr &&
      !commands.empty() && app.get_subcommands().empty()) {
    std::vector<std::string> names;
    for (const CLI::App* command : commands) {
      names.push_back(command->get_name());
    }
    throw UsageError(fmt::format("unknown command {}; there is {}", first,
                                 config::known_and_nearest(first, names)));
  }
  if (!first.starts_with("-")) {
    throw UsageError("unexpected argument " + first);
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      known.push_back("--" + name);
    }
  }
  throw UsageError(fmt::format("unknown option {}; it has {}", first,
                               config::known_and_nearest(first, known)));
}

/// As it was typed: "luna data pack".
std::string name_of(const CLI::App& app) {
  std::string name = "luna " + app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) {
    name += " " + sub->get_name();
  }
  return name;
}

void check_command_name(int argc, char** argv,
                        const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& c : commands) names.push_back(c.app->get_name());
  if (argc < 2) {
    throw UsageError(fmt::format("expected a command: {}; see luna --help",
                                 CLI::detail::join(names, ", ")));
  }
  const std::string first = argv[1];
  if (first.starts_with("-") ||
      std::find(names.begin(), names.end(), first) != names.end()) {
    return;
  }
  throw UsageError(fmt::format("unknown command {}; there is {}", first,
                               config::known_and_nearest(first, names)));
}

int run(int argc, char** argv) {
  CLI::App program("Linear attention, exact and fast.", "luna");
  program.set_version_flag("--version", std::string("luna ") + version());
  program.set_help_flag("-h,--help", "Print this help and exit");
  program.require_subcommand(0, 1);
  program.option_defaults()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  program.allow_extras();
  program.footer(
      "Example:\n"
      "  luna bench --quick --html bench.html\n\n"
      "`luna COMMAND --help` explains a command.");
  const std::vector<Command> commands = {
      add_info(program),     add_bench(program),     add_data(program),
      add_train(program),    add_eval(program),      add_sweep(program),
      add_report(program),   add_weights(program),   add_bpe(program),
      add_tokenize(program), add_encode(program),    add_convert(program),
      add_classify(program), add_translate(program), add_score(program)};
  std::string who = "luna";
  try {
    check_command_name(argc, argv, commands);
    program.parse(argc, argv);
    refuse_unknown(program);
    for (const Command& command : commands) {
      if (!command.app->parsed()) continue;
      who = name_of(*command.app);
      refuse_unknown(*command.app);
      for (const CLI::App* sub : command.app->get_subcommands()) {
        refuse_unknown(*sub);
      }
      ops::settle_vector_functions();
      return command.run();
    }
    throw UsageError("expected a command; see luna --help");
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);
    for (const Command& command : commands) {
      if (command.app->parsed()) who = name_of(*command.app);
    }
    return fail(who, error.what(), kUsage);
  } catch (const UsageError& error) {
    return fail(who, error.what(), kUsage);
  } catch (const c10::Error& error) {
    return fail(who, error.what_without_backtrace(), kFailure);
  } catch (const std::exception& error) {
    return fail(who, error.what(), kFailure);
  }
}

}  // namespace
}  // namespace luna::cli

int main(int argc, char** argv) { return luna::cli::run(argc, argv); }
