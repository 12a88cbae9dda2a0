#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/cli/command.h"
#include "snug/report/budget_text.h"
#include "snug/report/count.h"
#include "snug/report/table.h"
#include "snug/report/terminal.h"

namespace snug::cli {

report::Progress progress_of(const train::Team& team) {
  return team.is_first() ? report::Progress::for_terminal() : report::Progress::silent();
}

std::string summary(std::string_view title, const train::TrainResult& r, std::optional<double> validation_before) {
  std::vector<report::TableRow> rows = {
      {"parameters", report::format_count(r.parameters)},
  };
  if (r.trained_parameters != r.parameters) {
    rows.push_back({"of them trained", report::format_count(r.trained_parameters)});
  }
  rows.push_back({"steps", fmt::format("{}", r.steps)});
  rows.push_back({"loss", fmt::format("{:.4f} → {:.4f}", r.loss_first, r.loss_last)});
  if (r.validation_loss) {
    const std::string before = validation_before ? fmt::format("{:.4f} → ", *validation_before) : "";
    rows.push_back({"validation loss", before + fmt::format("{:.4f}", *r.validation_loss)});
  }
  rows.push_back(
      {"step time (median)", fmt::format("{:.3f} s, {:.0f} tokens/s", r.step_seconds_median, r.tokens_per_second)});
  if (r.scaled.loss_scale) {
    rows.push_back(
        {"loss scale at the end", fmt::format("{:g}, {} steps skipped", *r.scaled.loss_scale, r.scaled.skipped_steps)});
  }
  rows.push_back({"unplanned peak", format_bytes(r.peaks.unplanned)});
  if (r.plan.budget > 0) rows.push_back({"budget", report::budget_text(r.plan.budget, r.peaks.unplanned)});
  rows.push_back({"predicted peak", format_bytes(r.peaks.predicted)});
  if (r.memory.allocated_peak > r.peaks.predicted && r.peaks.copies > 0)
    rows.push_back({"copies of saved state", format_bytes(r.peaks.copies) + " beside it, while they were written"});
  std::string recording;
  if (r.recording_peak > r.memory.allocated_peak)
    recording = fmt::format(" ({} while it was recorded)", format_bytes(r.recording_peak));
  rows.push_back({"measured peak", format_bytes(r.memory.allocated_peak) + recording});
  if (r.arena) {
    rows.push_back({"arena", fmt::format("{}, {} of {} blocks of a step at their places", format_bytes(r.arena->bytes),
                                         r.arena->placed, r.arena->placed + r.arena->elsewhere)});
    rows.push_back({"reserved of the device", format_bytes(r.memory.mapped_peak)});
  }
  if (const Bytes saved = r.peaks.unplanned - r.memory.allocated_peak; saved > 0) {
    rows.push_back({"saved", fmt::format("{:.0f} % of the unplanned peak, {}",
                                         100 * static_cast<double>(saved) / static_cast<double>(r.peaks.unplanned),
                                         format_bytes(saved))});
  }
  rows.push_back({"resident high water",
                  fmt::format("{}, {} at the start", format_bytes(r.resident.peak), format_bytes(r.resident.start))});
  rows.push_back({"replayed operators", fmt::format("{} a step", r.replayed_ops)});
  return report::render_table(title, rows, report::terminal_columns(stdout));
}

}  // namespace snug::cli
