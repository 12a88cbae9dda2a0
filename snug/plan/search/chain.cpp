#include "snug/plan/search/chain.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "snug/plan/bound/relaxation.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/excerpt.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/plan/step/pieces.h"
#include "snug/plan/step/step_walk.h"

namespace snug::plan {
namespace {

constexpr std::size_t kChoicesPerPiece = 10;
constexpr std::size_t kOptionsPerPiece = 16;
constexpr std::size_t kPartsPerPiece = 64;
constexpr int kPartsPerCheckpoint = 16;  // fewer checkpoints take more time than anybody has

/// Memory of the whole step that belongs to no value of it, around each event.
struct Base {
  std::vector<Bytes> before;  // by event, and one more at the end
  explicit Base(const StepGraph& graph) {
    before.reserve(graph.events.size() + 1);
    StepWalk walk(graph);
    for (; !walk.at_end(); walk.step()) before.push_back(walk.unowned());
    before.push_back(walk.unowned());
  }
};

/// Events [begin, end).
struct Window {
  std::size_t begin = 0, end = 0;
};

struct Windows {
  std::vector<Window> forward, backward;  // by piece
};

/// When the step's forward and backward passes are in each piece.
Windows windows_of(const StepGraph& graph, const std::vector<Excerpt>& pieces) {
  Windows w;
  const std::size_t settle = graph.settle_event();
  const std::size_t count = pieces.size();
  w.forward.resize(count);
  w.backward.resize(count);
  std::size_t begin = 0;
  for (std::size_t p = 0; p < count; ++p) {
    std::size_t end = settle;
    if (p + 1 < count) {
      const auto& next = pieces[p + 1];
      const auto run = std::ranges::find(next.graph.events, Event::Kind::Run, &Event::kind);
      end = next.events[static_cast<std::size_t>(run - next.graph.events.begin())];
    }
    w.forward[p] = {begin, end};
    begin = end;
  }
  // Backward arrives at a piece when it first asks for something that only this piece reads. Where it asks for nothing
  // of the kind, its turn takes no time.
  w.backward.assign(count, {settle, settle});
  std::size_t turn = count;  // whose it is
  for (std::size_t p = count; p-- > 0;) {
    std::size_t arrival = p + 1 == count ? settle : graph.events.size();
    for (std::size_t i = 0; i < pieces[p].events.size() && p + 1 < count; ++i) {
      const Event& e = pieces[p].graph.events[i];
      const bool inner = e.kind == Event::Kind::Unpack && !pieces[p].leaving[at(e.id)];
      if (inner && pieces[p].events[i] >= w.backward[turn].begin) {
        arrival = pieces[p].events[i];
        break;
      }
    }
    if (arrival == graph.events.size()) continue;
    if (turn < count) w.backward[turn].end = arrival;
    w.backward[p] = {arrival, graph.events.size()};
    turn = p;
  }
  for (std::size_t p = count; p-- > 0;) {
    if (p + 1 < count && w.backward[p].begin == settle) w.backward[p] = {w.backward[p + 1].end, w.backward[p + 1].end};
  }
  return w;
}

/// Highest memory in a window when only this piece's values count beside what is no value.
Bytes need_in(const StepGraph& graph, const Base& base, Window window, const Excerpt& piece, const Simulation& run) {
  Bytes need = 0;
  auto local = static_cast<std::size_t>(std::ranges::lower_bound(piece.events, window.begin) - piece.events.begin());
  Bytes live = local > 0 ? run.timeline[local - 1] : 0;
  for (std::size_t i = window.begin; i < window.end; ++i) {
    Bytes highest = live;
    if (local < piece.events.size() && piece.events[local] == i) {
      highest = std::max(run.peaks[local], run.timeline[local]);
      live = run.timeline[local++];
    } else if (graph.events[i].kind == Event::Kind::Other) {
      highest += graph.events[i].peak;
    }
    need = std::max(need, base.before[i] + highest);
  }
  return need;
}

std::vector<SegmentRange> singles_of(const std::vector<char>& replayed) {
  std::vector<SegmentRange> singles;
  for (OpId op = 0; at(op) < replayed.size(); ++op) {
    if (replayed[at(op)]) singles.push_back({op, op + 1});
  }
  return singles;
}

bool no_better(const PieceOption& a, const PieceOption& b) {
  return a.kept >= b.kept && a.seconds >= b.seconds && a.forward_need >= b.forward_need &&
         a.backward_need >= b.backward_need && a.forward_bytes >= b.forward_bytes;
}

/// A piece as a replay of a longer segment sees it: that passes through on the way to what the piece hands on, which
/// then stays until backward arrives here.
struct ReplayedPiece {
  StepGraph graph;
  std::vector<std::size_t> events;  // the excerpt's, here
  std::size_t replay = 0;           // the event

  ReplayedPiece(const Excerpt& excerpt, Window backward) : graph(excerpt.graph) {
    std::vector<ValueId> leaving;
    for (std::size_t v = 0; v < excerpt.leaving.size(); ++v) {
      if (excerpt.leaving[v]) leaving.push_back(static_cast<ValueId>(v));
    }
    const OpId reader = graph.flow.add_op(leaving, kRootSegment);
    const ValueId target = graph.flow.add_output();
    graph.ops.emplace_back();
    graph.values.emplace_back();
    graph.events.clear();
    const auto add = [&](Event::Kind kind, std::int32_t id) { graph.events.push_back({kind, id, 0, 0, 0}); };
    bool arrived = false;
    const auto arrive = [&] {
      for (const ValueId v : leaving) {
        add(Event::Kind::Unpack, v);
        add(Event::Kind::Release, v);
      }
      arrived = true;
    };
    for (std::size_t i = 0; i < excerpt.events.size(); ++i) {
      const Event& e = excerpt.graph.events[i];
      if (e.kind == Event::Kind::Settle) {
        add(Event::Kind::Run, reader);
        for (const ValueId v : leaving) add(Event::Kind::Save, v);
        add(Event::Kind::Save, target);
        add(Event::Kind::Die, target);
      } else if (replay > 0 && !arrived && excerpt.events[i] >= backward.begin) {
        arrive();
      }
      events.push_back(graph.events.size());
      graph.events.push_back(e);
      if (e.kind != Event::Kind::Settle) continue;
      replay = graph.events.size();
      add(Event::Kind::Unpack, target);
      add(Event::Kind::Release, target);
    }
    if (!arrived) arrive();
  }
};

/// Ways to replay a piece part by part: the segments of Revolve's closed form for ever more checkpoints, and the last
/// part apart, so that nothing inside of parts waits for its turn.
std::vector<std::vector<SegmentRange>> nested_parts(const std::vector<OpId>& ends) {
  std::vector<std::vector<SegmentRange>> ways;
  const int parts = static_cast<int>(ends.size()) - 1;
  for (int checkpoints = 1; parts > 1 && checkpoints < 2 * parts; checkpoints *= 2) {
    if (parts > kPartsPerCheckpoint * checkpoints) continue;
    std::vector<SegmentRange>& way = ways.emplace_back();
    for (const SegmentRange& range : revolve_segments(parts, checkpoints)) {
      way.push_back({ends[at(range.begin)], ends[at(range.end)]});
    }
    way.push_back({ends[at(parts - 1)], ends[at(parts)]});
  }
  return ways;
}

class PieceWeigher {
 public:
  /// `parts`: where parts of the piece begin and end, in the excerpt.
  PieceWeigher(const StepGraph& graph, const Base& base, Window forward, Window backward, const Excerpt& excerpt,
               std::vector<OpId> parts)
      : graph_(graph),
        base_(base),
        forward_(forward),
        backward_(backward),
        excerpt_(excerpt),
        parts_(std::move(parts)) {}

  Piece weigh() {
    const StepGraph& local = excerpt_.graph;
    Piece piece;
    piece.begin = excerpt_.begin;
    piece.end = excerpt_.begin + local.flow.ops();
    piece.backward_base = base_.before[backward_.begin];
    for (const OpInfo& op : local.ops) piece.seconds += op.seconds;
    Moment between(local, local.settle_event());
    for (std::size_t v = 0; v < between.free.size(); ++v) between.free[v] = between.free[v] || excerpt_.leaving[v];
    const Relaxation relaxation(local, std::move(between));
    std::vector<Action> nothing(local.values.size(), kRecompute);
    for (std::size_t v = 0; v < nothing.size(); ++v) {
      if (excerpt_.leaving[v] || local.flow.is_leaf(static_cast<ValueId>(v))) nothing[v] = kKeep;
    }
    piece.nothing_kept = option(nothing, {});
    piece.inner_seconds = relaxation.everything_again().seconds;
    const ReplayedPiece replayed(excerpt_, backward_);
    piece.in_replay.push_back(in_replay(replayed, {}));
    for (const RelaxedChoice& choice : relaxation.hull(kChoicesPerPiece)) {
      std::vector<Action> actions = relaxation.actions(choice);
      // Replays of later pieces start from what leaves this one.
      for (std::size_t v = 0; v < actions.size(); ++v) {
        if (excerpt_.leaving[v]) actions[v] = kKeep;
      }
      const auto runs = runs_with_readers(local.flow, choice.replayed);
      std::vector<std::vector<SegmentRange>> ways{{}};
      if (!runs.empty()) ways.push_back(runs);
      if (auto singles = singles_of(choice.replayed); singles != runs) ways.push_back(singles);
      for (const auto& way : ways) {
        piece.options.push_back(option(actions, way));
        if (!way.empty()) piece.in_replay.push_back(in_replay(replayed, way));
      }
    }
    for (const auto& way : nested_parts(parts_)) piece.in_replay.push_back(in_replay(replayed, way));
    const double once = piece.in_replay.front().seconds;
    for (PieceOption& o : piece.in_replay) o.seconds = std::max(o.seconds - once, 0.0);
    leave_useful(piece.options);
    leave_useful(piece.in_replay);
    return piece;
  }

 private:
  [[nodiscard]] PieceOption option(const std::vector<Action>& actions,
                                   const std::vector<SegmentRange>& segments) const {
    const StepGraph& local = excerpt_.graph;
    MemoryPlan plan;
    plan.actions = actions;
    PieceOption result;
    for (std::size_t v = 0; v < actions.size(); ++v) {
      if (actions[v] == kRecompute || local.flow.is_leaf(static_cast<ValueId>(v))) continue;
      result.actions.emplace_back(excerpt_.values[v], actions[v]);
      result.kept += bytes_held(local, static_cast<ValueId>(v), actions[v]);
    }
    plan.segments = segments;
    const Simulation run = simulate(local, plan, Detail::Timeline);
    result.seconds = run.seconds;
    result.forward_need = need_in(graph_, base_, forward_, excerpt_, run);
    result.backward_need = need_in(graph_, base_, backward_, excerpt_, run);
    for (std::size_t i = 0; i < local.settle_event(); ++i) {
      result.forward_bytes = std::max(result.forward_bytes, run.peaks[i]);
    }
    result.segments = in_whole_step(segments);
    return result;
  }

  [[nodiscard]] PieceOption in_replay(const ReplayedPiece& replayed, const std::vector<SegmentRange>& segments) const {
    MemoryPlan plan;
    plan.actions.assign(replayed.graph.values.size(), kRecompute);
    plan.segments = segments;
    Simulation run = simulate(replayed.graph, plan, Detail::Timeline);
    PieceOption result;
    result.kept = run.timeline[replayed.replay];
    result.forward_bytes = run.peaks[replayed.replay];
    result.seconds = run.seconds;
    for (std::size_t i = 0; i < replayed.events.size(); ++i) {
      run.timeline[i] = run.timeline[replayed.events[i]];
      run.peaks[i] = run.peaks[replayed.events[i]];
    }
    result.backward_need = need_in(graph_, base_, backward_, excerpt_, run);
    result.segments = in_whole_step(segments);
    return result;
  }

  [[nodiscard]] std::vector<SegmentRange> in_whole_step(std::vector<SegmentRange> segments) const {
    for (SegmentRange& range : segments) {
      range.begin += excerpt_.begin;
      range.end += excerpt_.begin;
    }
    return segments;
  }

  static void leave_useful(std::vector<PieceOption>& options) {
    std::vector<PieceOption> useful;
    for (std::size_t i = 0; i < options.size(); ++i) {
      bool useless = false;
      for (std::size_t k = 0; k < options.size() && !useless; ++k) {
        useless = k != i && no_better(options[i], options[k]) && (k < i || !no_better(options[k], options[i]));
      }
      if (!useless) useful.push_back(options[i]);
    }
    thin_out(useful);
    options = std::move(useful);
  }

  /// The first, the last and others evenly over what they keep.
  static void thin_out(std::vector<PieceOption>& options) {
    std::ranges::stable_sort(options, [](const PieceOption& a, const PieceOption& b) {
      return a.kept != b.kept ? a.kept > b.kept : a.seconds < b.seconds;
    });
    if (options.size() <= kOptionsPerPiece) return;
    std::vector<PieceOption> few;
    for (std::size_t i = 0; i < kOptionsPerPiece; ++i) {
      few.push_back(std::move(options[i * (options.size() - 1) / (kOptionsPerPiece - 1)]));
    }
    options = std::move(few);
  }

  const StepGraph& graph_;
  const Base& base_;
  Window forward_, backward_;
  const Excerpt& excerpt_;
  std::vector<OpId> parts_;
};

/// Where the parts of a piece begin and end, its own begin taken off: cuts inside of it, evenly thinned out.
std::vector<OpId> parts_of(OpId begin, OpId end, const std::vector<OpId>& cuts) {
  std::vector<OpId> parts{0};
  const auto inner = std::ranges::upper_bound(cuts, begin);
  const auto count = static_cast<std::size_t>(std::ranges::lower_bound(cuts, end) - inner);
  const std::size_t stride = count / kPartsPerPiece + 1;
  for (std::size_t i = stride; i <= count; i += stride) {
    parts.push_back(inner[static_cast<std::ptrdiff_t>(i - 1)] - begin);
  }
  parts.push_back(end - begin);
  return parts;
}

/// Chain::leaving
std::vector<std::vector<Bytes>> leaving_bytes(const StepGraph& graph, const std::vector<OpId>& cuts) {
  const std::size_t count = cuts.size() - 1;
  const Dataflow& flow = graph.flow;
  std::vector<std::size_t> piece_of(at(flow.ops()));
  for (std::size_t p = 0; p < count; ++p) std::fill(piece_of.begin() + cuts[p], piece_of.begin() + cuts[p + 1], p);
  std::vector<std::size_t> last_read(at(flow.values()), 0);
  for (OpId op = 0; op < flow.ops(); ++op) {
    for (ValueId v : flow.inputs(op)) last_read[at(v)] = piece_of[at(op)];
  }
  // made[i][j]: bytes of values that piece i made and pieces from j on read.
  std::vector<std::vector<Bytes>> made(count, std::vector<Bytes>(count + 1, 0));
  for (ValueId v = 0; v < flow.values(); ++v) {
    if (flow.is_leaf(v)) continue;
    const std::size_t born = piece_of[at(flow.producer(v))];
    for (std::size_t j = born + 1; j <= last_read[at(v)]; ++j) made[born][j] += graph.step_bytes(v);
  }
  std::vector<std::vector<Bytes>> leaving(count, std::vector<Bytes>(count + 1, 0));
  for (std::size_t j = 1; j <= count; ++j) {
    Bytes sum = 0;
    for (std::size_t i = j; i-- > 0;) leaving[i][j] = sum += made[i][j];
  }
  return leaving;
}

}  // namespace

Chain make_chain(const StepGraph& graph, std::size_t limit) {
  Chain chain;
  if (graph.flow.ops() == 0) return chain;
  const std::vector<OpId> cuts = chain_cuts(graph, limit);
  const std::vector<Excerpt> pieces = excerpts(graph, cuts);
  const Base base(graph);
  const Windows windows = windows_of(graph, pieces);
  const std::vector<OpId> finest = chain_cuts(graph, at(graph.flow.ops()));
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    PieceWeigher weigher(graph, base, windows.forward[p], windows.backward[p], pieces[p],
                         parts_of(cuts[p], cuts[p + 1], finest));
    chain.pieces.push_back(weigher.weigh());
  }
  chain.leaving = leaving_bytes(graph, cuts);
  return chain;
}

}  // namespace snug::plan
