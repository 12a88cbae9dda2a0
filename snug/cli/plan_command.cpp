#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/base/read_at.h"
#include "snug/cli/command.h"
#include "snug/cli/largest.h"
#include "snug/cli/output.h"
#include "snug/cli/plan_mesh.h"
#include "snug/cli/plan_report.h"
#include "snug/described/described_device.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/planner.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/strategy.h"
#include "snug/train/choose.h"
#include "snug/train/config.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/planned_experiment.h"

namespace snug::cli {
namespace {

struct PlanOptions {
  ConfigOptions config;
  std::optional<std::string> strategy;
  std::string out;
  std::string graph;
  std::string plan;  // a file, in place of a strategy
  std::string graph_out;
  bool explain = false;
  std::optional<train::Extent> largest;
  std::string on;  // of a device that is not here
  MeshOptions mesh;
};

PlanReport plan_graph(const PlanOptions& options) {
  plan::StepGraph graph = plan::read_step_graph(options.graph);
  std::optional<plan::PlanFile> file;
  if (!options.plan.empty()) check_is_for(file.emplace(plan::read_plan(options.plan)), graph);
  const auto budget =
      plan::budget_for(train::requested_budget(options.config.budget, file), plan::plan_none(graph).predicted_peak);
  const double started = monotonic_seconds();
  std::vector<replay::RecordedStep> recorded(1);
  recorded.front().graph = std::move(graph);
  std::vector<replay::PlannedStep> kinds =
      file ? replay::planned(std::move(recorded), file->plan)
           : replay::planned(std::move(recorded), options.strategy.value_or("optimal"));
  const double seconds = monotonic_seconds() - started;
  return report_on(std::move(kinds), budget, seconds);
}

PlanReport plan_configuration(const PlanOptions& options) {
  train::Config config = configuration_of_steps(options.config);
  if (options.strategy) config.memory.strategy = *options.strategy;
  std::optional<plan::PlanFile> file;
  if (!options.plan.empty()) file = plan::read_plan(options.plan);
  train::validate(config);
  // The budget decides on what fits, and says what is missing.
  std::optional<described::AnyAmountOfMemory> for_all_of_it;
  if (!options.on.empty()) for_all_of_it.emplace();
  train::warm_up(config);
  report::Progress progress = report::Progress::for_terminal();
  train::Chosen chosen{.config = config, .choices = {}};
  if (!file) {
    chosen = train::choose(config, progress);
  } else if (!config.memory.allow.empty()) {
    throw UsageError(
        "plan: memory.allow may change the step, and --plan is of the step as it is; leave one of them out");
  }
  try {
    train::Experiment experiment(chosen.config);
    train::PlannedExperiment planned = train::plan_experiment(experiment, train::Kinds::Run, file);
    PlanReport report = report_on(std::move(planned.kinds), planned.budget, planned.planning_seconds,
                                  chosen.config.train.accumulate, planned.window);
    report.choices = std::move(chosen.choices);
    if (!options.on.empty()) report.device = described::description().name;
    return report;
  } catch (const DoesNotFit& refusal) {
    if (file) throw;
    throw train::with_cheapest_change(refusal, chosen.config, progress);
  }
}

void check_strategy(const std::string& strategy) {
  try {
    (void)plan::strategy_from(strategy);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("plan: --strategy: {}", error.what()));
  }
}

/// The device that is described takes the place of that of the configuration, and all that a process has of it that of
/// a budget that nobody gives.
void plan_on_described(PlanOptions& options) {
  if (options.on.empty()) return;
  if (options.config.file.empty()) throw UsageError("plan: --on says where a configuration would train; name one");
  if (options.config.device) throw UsageError("plan: --on and --device are two devices; leave one of them out");
  refuse_setting(options.config, "train.device", "--on has the last word");
  const described::DeviceDescription device = read_at("--on", [&] { return described::describe(options.on); });
  options.config.device = described::install(device).str();
  options.mesh.on = device;
  if (!options.config.budget && !options.mesh.device_memory && !unchecked_configuration(options.config).memory.budget)
    options.config.budget = plan::BudgetRequest(device.usable());
}

int run(PlanOptions options) {
  refuse_launcher();
  plan_on_described(options);
  const bool more =
      options.explain || !(options.out + options.graph + options.graph_out + options.plan).empty() || options.strategy;
  if (options.mesh.any()) {
    if (more || options.largest) {
      throw UsageError(
          "plan: --devices looks for a layout; it takes --nodes, --device-memory, --host-memory, --link, --on, "
          "--budget, --set and --json");
    }
    const train::InterruptScope interruptible;
    return plan_mesh(options.config, options.mesh);
  }
  if (options.largest) {
    if (more) throw UsageError("plan: --largest makes optimal plans of its own; it takes --budget, --set and --json");
    return find_largest(options.config, *options.largest);
  }
  if (options.config.file.empty() && options.graph.empty()) {
    throw UsageError("plan: there is nothing to plan; name a configuration, or a recorded step with --graph");
  }
  if (!options.config.file.empty() && !options.graph.empty()) {
    throw UsageError(fmt::format("plan: {} and --graph {} are two steps; only one of them can be given",
                                 options.config.file, options.graph));
  }
  if (!options.graph.empty() && !options.config.settings.empty()) {
    throw UsageError("plan: --set changes a configuration, but --graph has none");
  }
  if (!options.graph.empty() && options.config.device) {
    throw UsageError("plan: --device is where a configuration's step is recorded, but --graph is one already");
  }
  if (!options.plan.empty() && options.strategy) {
    throw UsageError("plan: --plan is a plan already; leave --strategy out, or --plan");
  }
  if (!options.plan.empty()) refuse_setting(options.config, "memory.strategy", "--plan is a plan already");
  if (options.strategy) refuse_setting(options.config, "memory.strategy", "--strategy has the last word");
  if (options.strategy) check_strategy(*options.strategy);
  if (!options.graph_out.empty()) check_can_be_written("--graph-out", options.graph_out);
  if (!options.out.empty()) check_can_be_written("--out", options.out);
  const PlanReport report = options.graph.empty() ? plan_configuration(options) : plan_graph(options);
  if (!options.graph_out.empty()) plan::write_step_graph(options.graph_out, report.graph);
  if (!options.out.empty()) plan::write_plan(options.out, plan::plan_file_for(report.graph, report.plan));
  const plan::Explanation why = plan::explain(report.graph, report.plan);
  if (options.config.json) {
    print(to_json(report, why, options.explain).dump() + "\n");
    return 0;
  }
  print(report, why, options.explain);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      app.add_subcommand("plan", "Record one step and tell what a budget takes, with a bound on what is possible");
  add_config_options(*command, options->config);
  command->get_option("config")->required(false);
  command->add_option("--strategy", options->strategy, "How the plan is made: memory.strategy")->type_name("STRATEGY");
  command->add_option("--plan", options->plan, "Predict this plan in place of making one")->type_name("PLAN.json");
  command->add_option("--out", options->out, "Write the plan, for snug train --plan")->type_name("PLAN.json");
  command->add_option("--graph", options->graph, "Plan this recorded step in place of a configuration")
      ->type_name("GRAPH.json");
  command->add_option("--graph-out", options->graph_out, "Write the recorded step, to be planned elsewhere")
      ->type_name("GRAPH.json");
  command->add_flag("--explain", options->explain, "Tell what each piece keeps and recomputes, and what that costs");
  command
      ->add_option_function<std::string>(
          "--largest", [options](const std::string& name) { options->largest = extent_named(name); },
          "Tell the largest batch, sequence or number of blocks that fits the budget, and run one step of it")
      ->type_name("batch|sequence|blocks");
  command
      ->add_option("--on", options->on,
                   "Plan for this device, which need not be here: rtx-4090, h100-sxm, ... or 312TFLOPS/2TBps/80GiB")
      ->type_name("DEVICE");
  add_mesh_options(*command, options->mesh);
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace snug::cli
