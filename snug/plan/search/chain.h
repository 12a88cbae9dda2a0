#pragma once

#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/segments.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// One way to run a piece of a chain. Bytes of needs are all memory of the device, except what earlier pieces keep.
struct PieceOption {
  Bytes kept = 0;           ///< from its forward to its backward pass, what later pieces read included
  double seconds = 0;       ///< of what it runs again
  Bytes forward_need = 0;   ///< highest, while the step's forward pass is in the piece
  Bytes backward_need = 0;  ///< highest, while backward is in it
  Bytes forward_bytes = 0;  ///< highest of the piece's own values while it runs
  std::vector<std::pair<ValueId, Action>> actions;  ///< of values that are not made again, in the whole step
  std::vector<SegmentRange> segments;               ///< of the whole step, that its replays run in
};

/// A stretch of a step that hands few values on.
struct Piece {
  OpId begin = 0, end = 0;
  double seconds = 0;                ///< of all its operators
  double inner_seconds = 0;          ///< of those that make what its own backward pass asks for
  Bytes backward_base = 0;           ///< all memory but values of the step, when backward arrives at it
  std::vector<PieceOption> options;  ///< none is worse than another in every respect; the first keeps everything
  /// The same when it is replayed as part of a longer segment. Plans keep nothing of that by value: all that backward
  /// waits for stays, except what is inside segments of the option's own. Seconds are those beside the replay's.
  std::vector<PieceOption> in_replay;
  PieceOption nothing_kept;  ///< but what later pieces read
};

/// A step as a chain of pieces: what the dynamic program works on.
struct Chain {
  std::vector<Piece> pieces;
  /// leaving[i][j]: bytes of values that pieces i to j-1 made and pieces from j on read.
  std::vector<std::vector<Bytes>> leaving;
};

/// Cuts the step at most `limit` times, where few values cross, and weighs the ways to run each piece.
Chain make_chain(const StepGraph& graph, std::size_t limit);

}  // namespace snug::plan
