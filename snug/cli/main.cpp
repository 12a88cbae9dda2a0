#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/nearest.h"
#include "snug/cli/command.h"
#include "snug/cli/output.h"

namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

/// One line: LibTorch's messages carry a stack trace after the first.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int report(const std::string& message, int code) {
  std::fputs(fmt::format("snug: {}\n", first_line(message)).c_str(), stderr);
  return code;
}

/// A descriptor that was closed would be the next file's that is opened, and what is printed would go there.
void occupy_standard_descriptors() {
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The wrong way round: its use is still an error.
    if (::fcntl(standard, F_GETFD) < 0) (void)::open("/dev/null", standard == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void expect_command(CLI::App& app, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::ranges::count(names, name) > 0) return;
  const auto nearest = snug::nearest_name(name, names);
  throw snug::UsageError(nearest
                             ? fmt::format("\"{}\" is no command; did you mean \"{}\"?", name, *nearest)
                             : fmt::format("\"{}\" is no command; the commands are {}", name, fmt::join(names, ", ")));
}

/// What an option that the command does not have was most likely meant to be; a sentence with a blank in front, or "".
std::string hint_about_options(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const bool takes_keys = std::ranges::count(names, "--set") > 0;
  for (const std::string& argument : command.remaining()) {
    if (!argument.starts_with("--")) continue;
    const std::string name = argument.substr(0, argument.find('='));
    std::string key = "." + name.substr(2);
    std::ranges::replace(key, '-', '_');
    std::vector<std::string> keys;
    for (const snug::train::KeyHelp& one : snug::train::config_keys()) {
      if (takes_keys && one.key.ends_with(key)) keys.push_back("--set " + one.key + "=...");
    }
    if (!keys.empty()) return fmt::format(" did you mean {}?", fmt::join(keys, " or "));
    if (const auto nearest = snug::nearest_name(name, names)) return fmt::format(" did you mean {}?", *nearest);
  }
  return "";
}

int run(int argc, char** argv) {
  CLI::App app{"Train PyTorch models inside a memory budget: planned in bytes, capped, proved."};
  app.set_version_flag("--version", SNUG_VERSION);
  app.require_subcommand(0, 1);
  snug::cli::Action action;
  snug::cli::add_doctor(app, action);
  snug::cli::add_plan(app, action);
  snug::cli::add_train(app, action);
  snug::cli::add_finetune(app, action);
  snug::cli::add_generate(app, action);
  snug::cli::add_verify(app, action);
  snug::cli::add_bench(app, action);
  if (argc > 1 && !std::string_view(argv[1]).starts_with('-')) expect_command(app, argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      const auto chosen = app.get_subcommands();
      const std::string command = chosen.empty() ? "" : " " + chosen.front()->get_name();
      const std::string hint = hint_about_options(chosen.empty() ? app : *chosen.front());
      return report(fmt::format("{};{} snug{} --help says how it is used", error.what(), hint, command), kWrongUse);
    }
    std::ostringstream text;  // of --help, --version
    (void)app.exit(error, text, text);
    snug::cli::print(text.str());
    return 0;
  }
  if (action) return action();
  snug::cli::print(app.help());
  return 0;
}

/// What `action` returns; when it throws, the error's exit code, after one line of what went wrong.
int guarded(const std::function<int()>& action) {
  try {
    return action();
  } catch (const snug::Error& error) {
    return report(error.what(), error.exit_code());
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), kFailed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  // Who no longer reads, and files that may not grow (ulimit -f), do not end a run; a write that fails is an error.
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  return guarded([&] {
    const int code = run(argc, argv);
    snug::cli::flush_output();
    return code;
  });
}
