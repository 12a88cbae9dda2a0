#include "snug/train/mesh/choose_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/out_of_budget.h"
#include "snug/plan/does_not_fit.h"
#include "snug/report/table.h"
#include "snug/train/interrupt.h"
#include "snug/train/mesh/next_layouts.h"

namespace snug::train {
namespace {

constexpr double kWorthwhile = 0.98;  // of the seconds before: less is noise
constexpr double kSame = 1.05;        // what another run may take of the same

class LayoutSearch {
 public:
  LayoutSearch(const Config& config, const Devices& devices, report::Progress& progress)
      : asked_(config), devices_(devices), progress_(progress), ways_(ways_further(config, devices)) {}

  std::vector<LayoutTrial> all() {
    try {
      for (const Config& first : first_layouts(asked_, devices_)) climb(first);
    } catch (const Stopped&) {
      if (std::ranges::none_of(trials_, [](const LayoutTrial& one) { return one.made.has_value(); })) throw;
      progress_.note("interrupted: the fastest is of those that were rehearsed by then");
    }
    const auto seconds = [](const LayoutTrial& one) {
      constexpr double kLast = std::numeric_limits<double>::infinity();
      return one.made ? one.made->seconds : one.floor ? std::numeric_limits<double>::max() : kLast;
    };
    double fastest = std::numeric_limits<double>::infinity();
    for (const LayoutTrial& one : trials_) fastest = std::min(fastest, seconds(one));
    // Simpler ones were tried first.
    std::ranges::stable_sort(trials_, std::less<>(), [&](const LayoutTrial& one) {
      return seconds(one) <= kSame * fastest ? fastest : seconds(one);
    });
    return std::move(trials_);
  }

 private:
  /// Goes each way as far as it leads, and all ways again where one has.
  void climb(const Config& first) {
    if (is_known(first)) return;
    std::size_t best = attempt(first);
    if (is_hopeless(best)) return;
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (const Further& further : ways_) {
        for (std::optional<Config> next = next_of(further, best); next && !is_known(*next);) {
          const std::size_t tried = attempt(*next);
          if (is_better(trials_[tried], trials_[best])) {
            best = tried;
            goes_on = true;
          } else if (trials_[best].made) {
            break;
          }
          next = next_of(further, tried);  // it may fit where this one does not
        }
      }
    }
  }

  [[nodiscard]] std::optional<Config> next_of(const Further& further, std::size_t trial) const {
    const LayoutTrial& from = trials_[trial];
    return further(from.config, from.made && from.made->blocks > 0 ? from.made->blocks : from.config.model.blocks);
  }

  [[nodiscard]] bool is_known(const Config& config) const {
    return std::ranges::any_of(trials_, [&](const LayoutTrial& one) { return one.config == config; });
  }

  static bool is_better(const LayoutTrial& one, const LayoutTrial& than) {
    if (one.made && than.made) return one.made->seconds < kWorthwhile * than.made->seconds;
    if (one.made || than.made) return one.made.has_value();
    return one.floor && (!than.floor || *one.floor < *than.floor);
  }

  /// Whether another one is faster than this would be without replays, waiting, and whatever else it does.
  [[nodiscard]] bool is_hopeless(std::size_t which) const {
    if (!trials_[which].made) return false;
    double busy = 0;
    for (const RehearsedProcess& one : trials_[which].made->processes) busy = std::max(busy, one.unplanned_seconds);
    for (std::size_t i = 0; i < trials_.size(); ++i) {
      if (i != which && trials_[i].made && trials_[i].made->seconds < kWorthwhile * busy) return true;
    }
    return false;
  }

  /// Its place among the trials.
  std::size_t attempt(const Config& config) {
    if (interrupted()) throw Stopped("plan: interrupted while layouts were rehearsed");
    LayoutTrial trial{.config = config, .made = {}, .floor = {}, .why_not = {}};
    try {
      trial.made = rehearse_layout(config, devices_);
    } catch (const DoesNotFit& error) {
      trial.floor = error.floor().floor;
      trial.why_not =
          fmt::format("takes {}{}", error.floor().recorded != DoesNotFit::Floor::Recorded::Whole ? "at least " : "",
                      format_bytes(*trial.floor));
    } catch (const OutOfBudget& error) {
      trial.floor = error.details().stats.allocated + error.details().requested;
      trial.why_not = fmt::format("takes more than {}", format_bytes(*trial.floor));
    } catch (const UsageError& error) {
      trial.why_not = error.what();
    }
    if (trial.made || trial.floor) {
      progress_.note(fmt::format("{}: {}", layout_in_words(config, devices_),
                                 trial.made ? fmt::format("{:.3g} s", trial.made->seconds) : trial.why_not));
    }
    trials_.push_back(std::move(trial));
    return trials_.size() - 1;
  }

  const Config& asked_;
  const Devices& devices_;
  report::Progress& progress_;
  std::vector<Further> ways_;
  std::vector<LayoutTrial> trials_;
};

Bytes highest(const RehearsedLayout& layout, Bytes RehearsedProcess::*bytes) {
  Bytes most = 0;
  for (const RehearsedProcess& one : layout.processes) most = std::max(most, one.*bytes);
  return most;
}

}  // namespace

std::vector<LayoutTrial> try_layouts(const Config& config, const Devices& devices, report::Progress& progress) {
  return LayoutSearch(config, devices, progress).all();
}

nlohmann::ordered_json to_json(const LayoutTrial& trial, const Devices& devices) {
  nlohmann::ordered_json json = to_json(trial.config).at("parallel");
  json.erase("timeout");
  json["data"] = replicas_of(trial.config, devices);
  json["micro_batches"] = trial.config.train.accumulate;
  json["optimizer_in"] = word(trial.config.memory.optimizer);
  json["fits"] = trial.made.has_value();
  if (!trial.made) {
    if (trial.floor) json["floor_bytes"] = *trial.floor;
    json["why_not"] = trial.why_not;
    return json;
  }
  json["step_seconds"] = trial.made->seconds;
  json["tokens_per_second"] = trial.made->tokens_per_second;
  json["idle"] = trial.made->idle;
  json["hand_over_seconds"] = trial.made->hand_over;
  for (const RehearsedProcess& one : trial.made->processes) {
    nlohmann::ordered_json process = {
        {"unplanned_peak_bytes", one.unplanned_peak}, {"predicted_peak_bytes", one.predicted_peak},
        {"measured_peak_bytes", one.measured_peak},   {"floor_bytes", one.floor},
        {"unplanned_seconds", one.unplanned_seconds}, {"rest_seconds", one.rest},
        {"stages", nlohmann::ordered_json::array()}};
    for (const plan::StageSeconds& stage : one.seconds) {
      process["stages"].push_back(
          {{"forward_seconds", stage.forward}, {"backward_seconds", stage.backward_input + stage.backward_weights}});
    }
    json["processes"].push_back(std::move(process));
  }
  return json;
}

std::string render(const std::vector<LayoutTrial>& trials, const Devices& devices, std::optional<int> most_columns) {
  const std::vector<std::string> header = {"layout", "step", "idle", "unplanned", "peak", "smallest budget"};
  std::vector<std::vector<std::string>> rows;
  std::map<std::string, int> refused;  // how many, by why
  for (const LayoutTrial& trial : trials) {
    if (trial.made) {
      const RehearsedLayout& made = *trial.made;
      rows.push_back({layout_in_words(trial.config, devices), fmt::format("{:.3g} s", made.seconds),
                      fmt::format("{:.0f} %", 100 * made.idle),
                      format_bytes(highest(made, &RehearsedProcess::unplanned_peak)),
                      format_bytes(highest(made, &RehearsedProcess::predicted_peak)),
                      format_bytes(highest(made, &RehearsedProcess::floor))});
    } else if (trial.floor) {
      rows.push_back({layout_in_words(trial.config, devices), trial.why_not});
    } else {
      ++refused[trial.why_not];
    }
  }
  std::string text;
  if (!rows.empty()) {
    text = report::render_table(
        fmt::format("layouts of {} process{}, the fastest first, of those within 5 % of it the simplest", devices.count,
                    devices.count == 1 ? "" : "es"),
        header, rows, most_columns);
  }
  for (const auto& [why, count] : refused)
    text += fmt::format("{} other{} cannot be: {}\n", count, count == 1 ? "" : "s", why);
  return text;
}

}  // namespace snug::train
