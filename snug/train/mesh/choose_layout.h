#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/report/progress.h"
#include "snug/train/config.h"
#include "snug/train/mesh/devices.h"
#include "snug/train/mesh/rehearsed_layout.h"

namespace snug::train {

/// A way to have so many processes train a configuration that was rehearsed.
struct LayoutTrial {
  Config config;                        ///< with it
  std::optional<RehearsedLayout> made;  ///< none where it cannot be
  std::optional<Bytes> floor;           ///< what it takes at least, where that does not fit
  std::string why_not;                  ///< where it cannot be
};

/// Looks for the layout with the fastest step that fits: goes from each of first_layouts() in all ways_further() as
/// long as that makes a step faster, lets it fit, or lowers what it takes at least. What could not become faster than
/// the fastest, whatever memory it had, is left. Each is rehearsed: see rehearse_layout(). Returns all that were, the
/// fastest first, of those within 5 % of it the simplest, and behind them what does not fit, and what is refused. Needs
/// warm_up(). Throws Stopped when interrupted() says so.
std::vector<LayoutTrial> try_layouts(const Config& config, const Devices& devices, report::Progress& progress);

nlohmann::ordered_json to_json(const LayoutTrial& trial, const Devices& devices);
/// As a table for a terminal.
std::string render(const std::vector<LayoutTrial>& trials, const Devices& devices,
                   std::optional<int> most_columns = {});

}  // namespace snug::train
