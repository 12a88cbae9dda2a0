#include "snug/cli/largest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/cli/output.h"
#include "snug/plan/budget_request.h"
#include "snug/report/progress.h"
#include "snug/report/table.h"
#include "snug/report/terminal.h"
#include "snug/train/experiment.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/run_device.h"

namespace snug::cli {
namespace {

struct Words {
  const char *name, *one;
};

Words words_for(train::Extent extent) {
  switch (extent) {
    case train::Extent::Batch:
      return {"largest batch", "sequence"};
    case train::Extent::Sequence:
      return {"longest sequence", "token"};
    case train::Extent::Blocks:
      break;
  }
  return {"most blocks", "block"};
}

nlohmann::ordered_json to_json(const train::Largest& l, train::Extent extent, Bytes budget) {
  return {{"budget_bytes", budget},
          {"extent", train::word(extent)},
          {"largest", l.size},
          {"model_limit", l.limit ? nlohmann::ordered_json(*l.limit) : nlohmann::ordered_json()},
          {"by_memory_about", l.by_memory},
          {"fixed_bytes_about", l.fixed},
          {"bytes_each", l.bytes_each},
          {"unplanned_peak_bytes", l.unplanned_peak},
          {"predicted_peak_bytes", l.predicted_peak},
          {"measured_peak_bytes", l.measured_peak},
          {"step_seconds", l.step_seconds}};
}

std::string render(const train::Largest& l, train::Extent extent, Bytes budget) {
  const Words words = words_for(extent);
  std::vector<report::TableRow> rows = {
      {"budget", format_bytes(budget)},
      {words.name, fmt::format("{}{}", l.size, l.size == l.limit ? ", the most that the model was made for" : "")}};
  if (l.limit) rows.push_back({"memory alone allows", fmt::format("about {}", l.by_memory)});
  rows.push_back({"at the least", fmt::format("{} and {} a {}", format_bytes(l.fixed),
                                              format_bytes(static_cast<Bytes>(l.bytes_each)), words.one)});
  rows.push_back({"unplanned peak", format_bytes(l.unplanned_peak)});
  rows.push_back({"predicted peak", format_bytes(l.predicted_peak)});
  rows.push_back({"measured peak", format_bytes(l.measured_peak)});
  rows.push_back({"step time", fmt::format("{:.3g} s, forward and backward", l.step_seconds)});
  return report::render_table(fmt::format("snug plan: the {}", words.name), rows, report::terminal_columns(stdout));
}

}  // namespace

train::Extent extent_named(std::string_view name) {
  if (const auto extent = train::choice_named<train::Extent>(name)) return *extent;
  throw UsageError(fmt::format("plan: --largest is \"{}\"; it is batch, sequence or blocks", name));
}

int find_largest(const ConfigOptions& options, train::Extent extent) {
  if (options.file.empty()) throw UsageError("plan: --largest needs a configuration");
  refuse_setting(options, "memory.strategy", "--largest makes optimal plans of its own");
  const train::Config config = configuration_of_steps(options);
  if (!config.memory.allow.empty()) {
    throw UsageError(
        "plan: --largest looks at steps as they are configured, and memory.allow may change them; set what it names "
        "by its own key, and leave it out");
  }
  if (config.memory.strategy != train::MemoryConfig().strategy) {
    throw UsageError(fmt::format("plan: --largest makes optimal plans, and memory.strategy is \"{}\"; leave that out",
                                 config.memory.strategy));
  }
  const std::optional<Bytes> budget = plan::limit_of(config.memory.budget);
  if (!budget) throw UsageError("plan: --largest needs a budget in bytes; give one with --budget, as in 2GiB");
  train::check_machine_has(budget, config, memory::device_memory(train::device_of(config)));
  train::warm_up(config);
  report::Progress progress = report::Progress::for_terminal();
  const train::Largest found = train::largest(config, extent, *budget, progress);
  print(options.json ? to_json(found, extent, *budget).dump() + "\n" : render(found, extent, *budget));
  return 0;
}

}  // namespace snug::cli
