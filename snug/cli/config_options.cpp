#include <fmt/format.h>

#include <string>
#include <string_view>

#include "snug/base/read_at.h"
#include "snug/cli/command.h"
#include "snug/memory/device_memory.h"
#include "snug/train/language_model.h"

namespace snug::cli {
namespace {

std::string keys_help() {
  std::string text =
      "\nKeys of the configuration file and of --set (type, default; what has a * stays as it was where a run is "
      "resumed, what has a + is for train and finetune):\n";
  for (const train::KeyHelp& key : train::config_keys()) {
    text += fmt::format("  {:<32} {:<8} {:<10} {}{}{}\n", key.key, key.type, key.default_text, key.help,
                        key.resumed == Resumed::Same ? " *" : "", key.commands == train::Commands::Runs ? " +" : "");
  }
  return text;
}

}  // namespace

void add_config_options(CLI::App& command, ConfigOptions& options) {
  command.add_option("config", options.file, "The configuration, a TOML file")->required()->type_name("CONFIG.toml");
  const auto read_budget = [&options](const std::string& text) {
    options.budget = read_at("--budget", [&] { return plan::parse_budget(text); });
    if (options.budget) return;
    throw CLI::ValidationError("--budget", "a budget is empty; write 400MiB or 40%, or leave it out");
  };
  command
      .add_option_function<std::string>("--budget", read_budget,
                                        "All memory that tensors may take: 400MiB, or 40% of the unplanned peak")
      ->type_name("BUDGET");
  const auto read_device = [&options](const std::string& name) {
    read_at("--device", [&] { return memory::device_named(name); });
    options.device = name;
  };
  command
      .add_option_function<std::string>("--device", read_device,
                                        "Where the model is, and steps run: cpu, cuda, cuda:1 (train.device)")
      ->type_name("DEVICE");
  command.add_option("--set", options.settings, "Set one key, as in --set train.steps=100; may be repeated")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  command.add_flag("--json", options.json, "Print one JSON object on standard output and nothing else there");
  command.footer(keys_help);
}

void refuse_setting(const ConfigOptions& options, std::string_view key, std::string_view why) {
  for (const std::string& setting : options.settings) {
    train::Config alone;
    train::set_key(alone, setting);
    if (alone.given.contains(std::string(key)))
      throw UsageError(fmt::format("--set {} does nothing here: {}", setting, why));
  }
}

train::Config configuration_of_steps(const ConfigOptions& options) {
  refuse_launcher();
  for (const train::KeyHelp& key : train::config_keys()) {
    if (key.commands == train::Commands::Runs) refuse_setting(options, key.key, "it is for train and finetune");
  }
  return configuration(options);
}

void refuse_launcher() {
  const auto launched = parallel::launched();
  if (!launched || launched->size == 1) return;
  throw UsageError(
      fmt::format("launcher: it has started {} processes, and each would do all of this by itself; train, finetune and "
                  "doctor are of several; start this one without a launcher",
                  launched->size));
}

train::Config unchecked_configuration(const ConfigOptions& options) {
  train::Config config = train::load_config(options.file);
  for (const std::string& setting : options.settings) train::set_key(config, setting);
  if (options.budget) config.memory.budget = options.budget;
  if (options.device) config.train.device = *options.device;
  train::take_kind_of_files(config);
  return config;
}

train::Config configuration(const ConfigOptions& options) {
  train::Config config = unchecked_configuration(options);
  train::validate(config);
  return config;
}

}  // namespace snug::cli
