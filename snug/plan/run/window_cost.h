#pragma once

#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/run/window_book.h"
#include "snug/plan/step/move_cost.h"

namespace snug::plan {

/// How a step uses streamed tensors, as it was recorded: its own time, without waiting for them.
struct StreamedStep {
  struct Use {
    StreamedUse what;
    double at = 0;  ///< seconds after the step's beginning
  };
  std::vector<Bytes> places;  ///< what each takes in a window, by StreamedId; none for those that are gone
  std::vector<Use> uses;      ///< in order
  double seconds = 0;         ///< the whole step, with its update
  Bytes at_once = 0;          ///< the most that operators use together: no window may be smaller
};

/// What a window makes of such a step when it is run again and again.
struct WindowCost {
  double seconds = 0;  ///< by which the step gets longer
  Bytes in = 0, out = 0;
};

/// `copies`: between the window and where the contents are. Pure.
WindowCost window_cost(const StreamedStep& step, Window window, const MoveCost& copies);

/// Of all windows of so many bytes, the one that costs least.
Window cheapest_window(const StreamedStep& step, Bytes bytes, const MoveCost& copies);

/// Sizes worth trying: from the smallest that holds what is used at once to what holds all, within `most`, which is
/// tried if it is between them. None when it is less.
std::vector<Bytes> window_sizes(const StreamedStep& step, Bytes most);

}  // namespace snug::plan
