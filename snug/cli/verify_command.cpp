#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "snug/base/errors.h"
#include "snug/cli/command.h"
#include "snug/cli/output.h"
#include "snug/report/budget_text.h"
#include "snug/report/table.h"
#include "snug/report/terminal.h"
#include "snug/train/interrupt.h"
#include "snug/train/verify.h"

namespace snug::cli {
namespace {

void print_verify_summary(const train::VerifyResult& r) {
  const double ratio = r.plain_seconds_median > 0 ? r.planned_seconds_median / r.plain_seconds_median : 0;
  std::vector<report::TableRow> rows = {{"unplanned peak", format_bytes(r.plan.unplanned_peak)}};
  if (r.plan.budget > 0) rows.push_back({"budget", report::budget_text(r.plan.budget, r.plan.unplanned_peak)});
  rows.push_back({"measured peak", format_bytes(r.memory.allocated_peak)});
  rows.push_back({"step without the plan", fmt::format("{:.3f} s", r.plain_seconds_median)});
  rows.push_back({"step with the plan", fmt::format("{:.3f} s (x {:.2f})", r.planned_seconds_median, ratio)});
  rows.push_back({"replayed operators", fmt::format("{}", r.replayed_ops)});
  rows.push_back({"tensors compared", fmt::format("{} in {} of {} steps", r.tensors, r.compared, r.steps)});
  rows.push_back({"tensors that differ", fmt::format("{}", r.different)});
  if (r.lossy > 0) {
    rows.push_back({"left to a lossy codec", format_bytes(r.lossy) + " a step"});
    rows.push_back({"error of all gradients", r.gradient_error.empty()
                                                  ? "not measured, as none are left"
                                                  : fmt::format("{:.3g} %", 100 * r.gradient_error_of_all)});
  }
  if (r.different > 0) {
    rows.push_back({"first difference", r.first_different});
    rows.push_back({"largest difference", fmt::format("{:g}", r.max_abs_difference)});
  }
  print(report::render_table("snug verify", rows, report::terminal_columns(stdout)));
}

/// The layers whose gradients are least exact.
void print_gradient_errors(const train::VerifyResult& r) {
  constexpr std::size_t kShown = 12;
  if (r.gradient_error.empty()) return;
  std::vector<report::TableRow> rows;
  for (std::size_t i = 0; i < std::min(kShown, r.gradient_error.size()); ++i)
    rows.push_back({r.gradient_error[i].layer, fmt::format("{:.3g} %", 100 * r.gradient_error[i].relative)});
  if (r.gradient_error.size() > kShown)
    rows.push_back({fmt::format("{} more", r.gradient_error.size() - kShown), "less"});
  print(report::render_table("error of the gradients, by layer", rows, report::terminal_columns(stdout)));
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto options = std::make_shared<ConfigOptions>();
  auto steps = std::make_shared<std::int64_t>(3);
  auto every = std::make_shared<std::int64_t>(1);
  CLI::App* command = app.add_subcommand("verify", "Prove that training under the plan is bitwise the same as without");
  add_config_options(*command, *options);
  command->add_option("--steps", *steps, "Steps to run")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--every", *every, "Compare each so many steps, and only train in between")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}))
      ->capture_default_str();
  command->callback([options, steps, every, &action] {
    action = [options, steps, every] {
      const train::Config config = configuration_of_steps(*options);
      const train::InterruptScope interruptible;
      report::Progress progress = report::Progress::for_terminal();
      const train::VerifyResult result = train::verify(config, *steps, *every, progress);
      if (options->json) {
        print(to_json(result).dump() + "\n");
      } else {
        print_verify_summary(result);
        print_gradient_errors(result);
      }
      if (result.different > 0) {
        throw Error(fmt::format("verify: {} of {} tensors differ, the first at {}, by at most {:g}", result.different,
                                result.tensors, result.first_different, result.max_abs_difference));
      }
      if (std::isnan(result.gradient_error_of_all)) {
        throw Error(
            fmt::format("verify: what memory.activations leaves makes gradients of {} infinite, or no numbers, that "
                        "are finite without it; take a codec of more bits, or leave it out",
                        result.gradient_error.front().layer));
      }
      if (result.steps < *steps) {
        throw Error(
            fmt::format("verify: stopped after {} of {} steps, which proves nothing of the others; run it again",
                        result.steps, *steps));
      }
      return 0;
    };
  });
}

}  // namespace snug::cli
