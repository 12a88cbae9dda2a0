#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>

#include "snug/base/errors.h"
#include "snug/cli/command.h"

namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

/// One line: LibTorch's messages carry a stack trace after the first.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int report(const std::string& message, int code) {
  fmt::print(stderr, "snug: {}\n", first_line(message));
  return code;
}

int run(int argc, char** argv) {
  CLI::App app{"Train PyTorch models inside a memory budget: planned in bytes, capped, proved."};
  app.set_version_flag("--version", SNUG_VERSION);
  app.require_subcommand(1);
  snug::cli::Action action;
  snug::cli::add_doctor(app, action);
  snug::cli::add_plan(app, action);
  snug::cli::add_train(app, action);
  snug::cli::add_finetune(app, action);
  snug::cli::add_generate(app, action);
  snug::cli::add_verify(app, action);
  snug::cli::add_bench(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return report(error.what(), kWrongUse);
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const snug::Error& error) {
    return report(error.what(), error.exit_code());
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), kFailed);
  }
}
