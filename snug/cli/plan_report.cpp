#include "snug/cli/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "snug/base/clock.h"
#include "snug/cli/output.h"
#include "snug/plan/planner.h"
#include "snug/plan/run/presets.h"
#include "snug/report/budget_text.h"
#include "snug/report/count.h"
#include "snug/report/table.h"
#include "snug/report/terminal.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/whole_step.h"

namespace snug::cli {

PlanReport report_on(std::vector<replay::PlannedStep> kinds, std::optional<plan::Budget> budget,
                     double planning_seconds, std::int64_t micro_batches, const replay::OpenedWindow& window) {
  PlanReport report;
  report.window = window;
  const double started = monotonic_seconds();
  const std::vector<plan::MemoryPlan> plans = replay::plan_all(kinds, budget);
  report.plan = plans.front();
  report.highest_peak = replay::highest_peak(plans);
  report.micro_batches = micro_batches;
  report.whole_step_seconds =
      window.cost.seconds + kinds.front().step.graph.update_seconds +
      train::whole_step_seconds(kinds, micro_batches, [&](std::size_t i) { return plans[i].predicted_seconds; });
  plan::StepGraph graph = replay::graph_under(kinds, plans);
  report.bound = plan::lower_bound(graph, budget ? budget->for_blocks() : report.plan.predicted_peak);
  report.bound.peak -= window.spare;
  report.floor = train::smallest_budget(kinds, window);
  report.gap = plan::optimality_gap(report.plan.predicted_seconds, report.bound.step_seconds, graph.step_seconds);
  // The bound of a graph without a place to move to knows no plan that moves values.
  if (!graph.moves.any() && std::ranges::any_of(report.plan.actions, plan::is_moved))
    report.bound.step_seconds = report.gap = std::numeric_limits<double>::infinity();
  report.planning_seconds = planning_seconds + monotonic_seconds() - started;
  report.graph = std::move(graph);
  return report;
}

namespace {

nlohmann::ordered_json share_to_json(const plan::Share& share) {
  nlohmann::ordered_json json = {{"name", share.name}};
  if (!share.module.empty()) json["module"] = share.module;
  json.update({{"kept_bytes", share.kept},
               {"moved_bytes", share.moved},
               {"compressed_bytes", share.compressed},
               {"encoded_bytes", share.encoded},
               {"lossy_bytes", share.lossy},
               {"lossy_in_bytes", share.lossy_encoded},
               {"recomputed_bytes", share.recomputed},
               {"seconds", share.seconds},
               {"replayed_ops", share.replayed_ops}});
  return json;
}

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

}  // namespace

nlohmann::ordered_json to_json(const PlanReport& r, const plan::Explanation& why, bool with_explanation) {
  nlohmann::ordered_json json = {
      {"device", r.device.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(r.device)},
      {"budget_bytes", r.plan.budget > 0 ? nlohmann::ordered_json(r.plan.budget) : nlohmann::ordered_json()},
      {"floor_bytes", r.floor},
      {"lower_bound_peak_bytes", r.bound.peak},
      {"unplanned_peak_bytes", r.plan.unplanned_peak},
      {"predicted_peak_bytes", r.plan.predicted_peak},
      {"predicted_peak_seconds", why.peak_seconds},
      {"highest_peak_bytes", r.highest_peak},
      {"unplanned_step_seconds", r.plan.unplanned_seconds},
      {"predicted_step_seconds", r.plan.predicted_seconds},
      {"lower_bound_step_seconds", number_or_null(r.bound.step_seconds)},
      {"gap", number_or_null(r.gap)},
      {"update_seconds", r.graph.update_seconds},
      {"micro_batches", r.micro_batches},
      {"whole_step_seconds", r.whole_step_seconds},
      {"update_bytes", r.graph.update_bytes},
      {"streamed_bytes", r.window.streamed},
      {"window_bytes", r.window.window.bytes},
      {"window_in_bytes", r.window.cost.in},
      {"window_out_bytes", r.window.cost.out},
      {"window_seconds", r.window.cost.seconds},
      {"planning_seconds", r.planning_seconds},
      {"graph_ops", r.graph.ops.size()},
      {"kept_bytes", why.all.kept},
      {"moved_bytes", why.all.moved},
      {"host_peak_bytes", why.host_peak},
      {"disk_peak_bytes", why.disk_peak},
      {"leaving_bytes", r.plan.staging.leaving},
      {"arriving_bytes", r.plan.staging.arriving},
      {"waiting_seconds", why.waiting},
      {"compressed_bytes", why.all.compressed},
      {"encoded_bytes", why.all.encoded},
      {"lossy_bytes", why.all.lossy},
      {"lossy_in_bytes", why.all.lossy_encoded},
      {"recomputed_bytes", why.all.recomputed},
      {"strategy", r.plan.strategy}};
  json["choices"] = to_json(r.choices);
  if (with_explanation) {
    for (const plan::Share& share : why.pieces) json["pieces"].push_back(share_to_json(share));
    json["operators"] = nlohmann::ordered_json::array();
    for (const plan::Share& share : why.operators) json["operators"].push_back(share_to_json(share));
  }
  return json;
}

namespace {

std::string more_time(double seconds, double of) {
  return of > 0 ? fmt::format("+{:.2f} %", 100 * seconds / of) : fmt::format("+{:.3f} s", seconds);
}

void print_plan_summary(const PlanReport& r, const plan::Explanation& why) {
  const plan::MemoryPlan& p = r.plan;
  const auto percent = [&](Bytes part) { return report::format_share(part, p.unplanned_peak, 1); };
  std::vector<report::TableRow> rows;
  if (!r.device.empty()) rows.push_back({"on", r.device + ", which is not here: times by its data sheet"});
  rows.insert(rows.end(), {
                              {"operators", fmt::format("{}", r.graph.ops.size())},
                              {"unplanned peak", format_bytes(p.unplanned_peak)},
                          });
  if (p.budget > 0) rows.push_back({"budget", report::budget_text(p.budget, p.unplanned_peak, 1)});
  rows.push_back({"predicted peak", fmt::format("{}{}, {:.3f} s into the step", format_bytes(p.predicted_peak),
                                                percent(p.predicted_peak), why.peak_seconds)});
  if (r.highest_peak > p.predicted_peak)
    rows.push_back({"of all kinds of steps", format_bytes(r.highest_peak) + percent(r.highest_peak)});
  rows.push_back({"smallest budget",
                  fmt::format("{}, no plan has a peak below {}", format_bytes(r.floor), format_bytes(r.bound.peak))});
  rows.push_back({"kept for backward", format_bytes(why.all.kept)});
  if (why.all.lossy > 0) {
    rows.push_back({"in fewer bits, not the same",
                    fmt::format("{} in {}", format_bytes(why.all.lossy), format_bytes(why.all.lossy_encoded))});
  }
  if (why.all.compressed > 0) {
    rows.push_back({"compressed, the same bits",
                    fmt::format("{} in {}", format_bytes(why.all.compressed), format_bytes(why.all.encoded))});
  }
  if (why.all.moved > 0) {
    std::vector<std::string> where;
    if (why.host_peak > 0) where.push_back(format_bytes(why.host_peak) + " at once on the host");
    if (why.disk_peak > 0) where.push_back(format_bytes(why.disk_peak) + " at once on the disk");
    rows.push_back({"moved", fmt::format("{}, {}; the step waits {:.3f} s for copies", format_bytes(why.all.moved),
                                         fmt::join(where, ", "), why.waiting)});
  }
  if (p.staging.leaving + p.staging.arriving > 0) {
    rows.push_back(
        {"memory for copies", fmt::format("{} on their way there, {} fetched ahead", format_bytes(p.staging.leaving),
                                          format_bytes(p.staging.arriving))});
  }
  rows.push_back(
      {"recomputed", fmt::format("{}, {} operators replayed", format_bytes(why.all.recomputed), why.all.replayed_ops)});
  rows.push_back({r.micro_batches > 1 ? "predicted micro-batch" : "predicted step",
                  fmt::format("{:.3f} s ({})", p.predicted_seconds,
                              more_time(p.predicted_seconds - p.unplanned_seconds, p.unplanned_seconds))});
  if (std::isfinite(r.bound.step_seconds)) {
    rows.push_back({"no plan is faster than",
                    fmt::format("{:.3f} s ({})", r.bound.step_seconds,
                                more_time(r.bound.step_seconds - p.unplanned_seconds, p.unplanned_seconds))});
  }
  if (std::isfinite(r.gap)) rows.push_back({"extra time above the bound's", fmt::format("{:.1f} %", 100 * r.gap)});
  if (r.graph.update_seconds > 0) {
    rows.push_back({"optimizer step", fmt::format("{:.3f} s more, {} above the gradients", r.graph.update_seconds,
                                                  format_bytes(r.graph.update_bytes))});
  }
  const replay::OpenedWindow& streamed = r.window;
  if (streamed.streamed > 0) {
    rows.push_back(
        {"streamed weights and state",
         fmt::format("{} in a window of {}; {} come and {} leave in a step, which waits {:.3f} s",
                     format_bytes(streamed.streamed), format_bytes(streamed.window.bytes),
                     format_bytes(streamed.cost.in), format_bytes(streamed.cost.out), streamed.cost.seconds)});
  }
  if (r.micro_batches > 1 || streamed.streamed > 0) {
    const std::string micros =
        r.micro_batches > 1 ? fmt::format("{} micro-batches as above", r.micro_batches) : "the step";
    rows.push_back({"the whole step", fmt::format("{:.3f} s, {} and the optimizer step{}", r.whole_step_seconds, micros,
                                                  streamed.streamed > 0 ? ", with waiting" : "")});
  }
  rows.push_back({"planned in", fmt::format("{:.3f} s", r.planning_seconds)});
  print(report::render_table("snug plan: " + p.strategy, rows, report::terminal_columns(stdout)));
}

void print_shares(const std::string& title, const std::string& label, const std::vector<plan::Share>& shares,
                  double step_seconds) {
  struct Column {
    const char* name;
    Bytes plan::Share::*bytes;
  };
  std::vector<Column> columns = {{"kept", &plan::Share::kept}};
  for (const Column& column : {Column{"moved", &plan::Share::moved}, Column{"compressed", &plan::Share::compressed},
                               Column{"in fewer bits", &plan::Share::lossy}}) {
    if (std::ranges::any_of(shares, [&](const plan::Share& s) { return s.*column.bytes > 0; }))
      columns.push_back(column);
  }
  columns.push_back({"recomputed", &plan::Share::recomputed});
  std::vector<std::string> header = {label};
  for (const Column& column : columns) header.emplace_back(column.name);
  header.insert(header.end(), {"replayed", "costs", "ms per MiB"});
  std::vector<std::vector<std::string>> rows;
  for (const plan::Share& s : shares) {
    const double mib = static_cast<double>(s.recomputed) / static_cast<double>(1_MiB);
    rows.push_back({s.module.empty() ? s.name : fmt::format("{} ({})", s.name, s.module)});
    for (const Column& column : columns) rows.back().push_back(format_bytes(s.*column.bytes));
    rows.back().insert(rows.back().end(), {fmt::format("{}", s.replayed_ops), more_time(s.seconds, step_seconds),
                                           s.recomputed > 0 ? fmt::format("{:.3f}", 1000 * s.seconds / mib) : ""});
  }
  print(report::render_table(title, header, rows, report::terminal_columns(stdout)));
}

}  // namespace

void print(const PlanReport& r, const plan::Explanation& why, bool with_explanation) {
  print_plan_summary(r, why);
  if (!r.choices.empty()) print(render(r.choices, report::terminal_columns(stdout)));
  if (!with_explanation) return;
  print_shares("what each piece keeps and makes again", "piece", why.pieces, r.plan.unplanned_seconds);
  print_shares("what is made again, by operator", "operator", why.operators, r.plan.unplanned_seconds);
}

}  // namespace snug::cli
