#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/errors.h"
#include "snug/plan/budget_request.h"
#include "snug/train/config.h"
#include "snug/train/team.h"
#include "snug/train/trainer.h"

namespace snug::cli {

inline constexpr int kInterrupted = Stopped::kExitCode;

/// What a subcommand runs once the command line is parsed; returns the exit code.
using Action = std::function<int()>;

// One file per subcommand. Each adds itself to `app` and sets `action` when it is chosen.
void add_doctor(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_finetune(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);

/// The options that every subcommand with a configuration shares.
struct ConfigOptions {
  std::string file;
  std::optional<plan::BudgetRequest> budget;
  std::optional<std::string> device;  // train.device
  std::vector<std::string> settings;  // key=value
  bool json = false;
};
void add_config_options(CLI::App& command, ConfigOptions& options);
/// Throws UsageError where --set names a key that another option has the last word about.
void refuse_setting(const ConfigOptions& options, std::string_view key, std::string_view why);

/// On the terminal for the first of several processes; silent for the others.
report::Progress progress_of(const train::Team& team);

/// The table that `train` ends with. `validation_before`: of the model that training began with, where it was measured.
std::string summary(std::string_view title, const train::TrainResult& result,
                    std::optional<double> validation_before = {});

/// The configuration: defaults, then the file, then --set in order, then --budget; checked.
train::Config configuration(const ConfigOptions& options);
/// The same before it is checked, for what is to be said first.
train::Config unchecked_configuration(const ConfigOptions& options);
/// Throws UsageError where a launcher has started several processes, of which each would do the same.
void refuse_launcher();
/// The same for commands that train nothing to its end, and are of one process: refuse_launcher(). Throws UsageError
/// where --set names a key that is for those that do.
train::Config configuration_of_steps(const ConfigOptions& options);

}  // namespace snug::cli
