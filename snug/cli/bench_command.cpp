#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/base/comma_list.h"
#include "snug/base/errors.h"
#include "snug/base/read_at.h"
#include "snug/base/text_file.h"
#include "snug/cli/command.h"
#include "snug/cli/output.h"
#include "snug/plan/budget_request.h"
#include "snug/plan/strategy.h"
#include "snug/report/curve.h"
#include "snug/report/terminal.h"
#include "snug/train/bench.h"
#include "snug/train/interrupt.h"

namespace snug::cli {
namespace {

double mib(Bytes bytes) { return static_cast<double>(bytes) / static_cast<double>(1_MiB); }

report::Curve curve_of(const train::BenchResult& result, const std::string& title) {
  report::Curve curve{title, "peak of all memory (MiB)", "step time, unplanned = 1", {}};
  const auto add = [&](const std::string& strategy, const std::string& name, bool dashed, const auto& point) {
    report::Series series{name, dashed, {}};
    for (const train::BenchRow& r : result.rows) {
      if (r.fits && r.budget && r.strategy == strategy) series.points.push_back(point(r));
    }
    if (!series.points.empty()) curve.series.push_back(std::move(series));
  };
  const auto measured = [&](const train::BenchRow& r) {
    const double times = r.ratio_median;
    return report::Series::Point{mib(r.measured_peak), times,
                                 fmt::format("{}: {}, x {:.3f}", r.strategy, format_bytes(r.measured_peak), times)};
  };
  add("optimal", "optimal, measured", false, measured);
  add("optimal", "optimal, predicted", true, [&](const train::BenchRow& r) {
    const double times = r.predicted_seconds / result.unplanned_seconds_recorded;
    return report::Series::Point{mib(r.predicted_peak), times,
                                 fmt::format("predicted: {}, x {:.3f}", format_bytes(r.predicted_peak), times)};
  });
  add("eviction", "eviction alone, measured", false, measured);
  for (const train::BenchRow& r : result.rows) {
    if (r.fits && !r.budget) curve.series.push_back({r.strategy, false, {measured(r)}});
  }
  return curve;
}

void write_picture(const std::string& path, const report::Curve& curve) {
  try {
    write_text(path, render_svg(curve));
  } catch (const std::system_error& error) {
    throw Error(fmt::format("bench: {} cannot be written: {}", path, error.code().message()));
  }
}

std::vector<plan::BudgetRequest> budgets_in(const std::string& text) {
  std::vector<plan::BudgetRequest> budgets;
  for (const std::string& part : split_at_commas(text)) {
    const std::optional<plan::BudgetRequest> budget = read_at("--budgets", [&] { return plan::parse_budget(part); });
    if (!budget) throw UsageError("bench: a budget is empty; write --budgets as in 40%,60%,400MiB");
    budgets.push_back(*budget);
  }
  return budgets;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto options = std::make_shared<ConfigOptions>();
  auto budgets = std::make_shared<std::string>("40%,50%,60%,70%,80%,90%,100%");
  auto strategies = std::make_shared<std::string>("optimal");
  auto svg = std::make_shared<std::string>();
  auto rounds = std::make_shared<std::int64_t>(3);
  CLI::App* command = app.add_subcommand("bench", "Measure plans against the unplanned step, in turns in one process");
  add_config_options(*command, *options);
  command->remove_option(command->get_option("--budget"));
  command->add_option("--budgets", *budgets, "Budgets for optimal and eviction, of all memory of the step")
      ->type_name("BUDGET,...")
      ->capture_default_str();
  command->add_option("--strategies", *strategies, "Strategies; any but optimal and eviction gives one row")
      ->type_name("STRATEGY,...")
      ->capture_default_str();
  command->add_option("--rounds", *rounds, "Turns of every row, of three steps each")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}))
      ->capture_default_str();
  command->add_option("--svg", *svg, "Write the curve as a picture")->type_name("FILE.svg");
  command->callback([=, &action] {
    action = [=] {
      refuse_setting(*options, "memory.budget", "--budgets has those that are measured");
      refuse_setting(*options, "memory.strategy", "--strategies has those that are measured");
      train::BenchOptions bench;
      bench.budgets = budgets_in(*budgets);
      bench.strategies = split_at_commas(*strategies);
      for (const std::string& strategy : bench.strategies)
        read_at("--strategies", [&] { return plan::strategy_from(strategy); });
      if (!svg->empty()) check_can_be_written("--svg", *svg);
      const train::Config config = configuration_of_steps(*options);
      bench.rounds = *rounds;
      const train::InterruptScope interruptible;
      report::Progress progress = report::Progress::for_terminal();
      const train::BenchResult result = train::bench(config, bench, progress);
      if (options->json) {
        print(to_json(result).dump() + "\n");
      } else {
        print(render(result, "snug bench", report::terminal_columns(stdout)));
      }
      if (!result.complete) return kInterrupted;
      if (!svg->empty()) write_picture(*svg, curve_of(result, "snug bench " + options->file));
      return 0;
    };
  });
}

}  // namespace snug::cli
