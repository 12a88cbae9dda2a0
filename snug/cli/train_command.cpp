#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "snug/cli/command.h"
#include "snug/plan/plan_file.h"
#include "snug/report/table.h"
#include "snug/train/interrupt.h"
#include "snug/train/trainer.h"

namespace snug::cli {
namespace {

std::string share(Bytes part, Bytes whole) {
  if (whole <= 0) return "";
  return fmt::format(" ({:.0f} %)", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void print_summary(const train::TrainResult& r) {
  std::vector<report::TableRow> rows = {
      {"parameters", fmt::format("{:.1f} M", static_cast<double>(r.parameters) / 1e6)},
      {"steps", fmt::format("{}", r.steps)},
      {"loss", fmt::format("{:.4f} → {:.4f}", r.loss_first, r.loss_last)},
  };
  if (r.validation_loss) rows.push_back({"validation loss", fmt::format("{:.4f}", *r.validation_loss)});
  rows.push_back(
      {"step time (median)", fmt::format("{:.3f} s, {:.0f} tokens/s", r.step_seconds_median, r.tokens_per_second)});
  rows.push_back({"unplanned peak", format_bytes(r.plan.unplanned_peak)});
  if (r.plan.budget > 0)
    rows.push_back({"budget", format_bytes(r.plan.budget) + share(r.plan.budget, r.plan.unplanned_peak)});
  rows.push_back({"predicted peak", format_bytes(r.plan.predicted_peak)});
  rows.push_back({"measured peak", format_bytes(r.memory.allocated_peak)});
  rows.push_back({"resident high water",
                  fmt::format("{}, {} at the start", format_bytes(r.resident_peak), format_bytes(r.resident_start))});
  rows.push_back({"replayed operators", fmt::format("{} a step", r.replayed_ops)});
  std::fputs(report::render_table("snug train", rows).c_str(), stdout);
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  auto options = std::make_shared<ConfigOptions>();
  auto anomaly = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("train", "Train a model inside a memory budget");
  add_config_options(*command, *options);
  command->add_flag("--detect-anomaly", *anomaly, "When the loss is not finite, name the first operator that made it");
  auto plan_path = std::make_shared<std::string>();
  command
      ->add_option("--plan", *plan_path, "Follow this plan (see snug plan --out), and its budget unless one is given")
      ->type_name("PLAN.json");
  command->callback([options, anomaly, plan_path, &action] {
    action = [options, anomaly, plan_path] {
      train::Config config = configuration(*options);
      config.train.detect_anomaly = config.train.detect_anomaly || *anomaly;
      std::optional<plan::PlanFile> file;
      if (!plan_path->empty()) file = plan::read_plan(*plan_path);
      const train::InterruptScope interruptible;
      report::Progress progress = report::Progress::for_terminal();
      const train::TrainResult result = train::train(config, progress, file);
      if (options->json) {
        fmt::print("{}\n", to_json(result).dump());
      } else {
        print_summary(result);
      }
      return result.interrupted ? kInterrupted : 0;
    };
  });
}

}  // namespace snug::cli
