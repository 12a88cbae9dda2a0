#include "snug/plan/step/pieces.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

namespace snug::plan {
namespace {

constexpr OpId kFar = 64;      // operators
constexpr Bytes kLighter = 4;  // blocks of one model, such as those of encoder and decoder, differ by no more

constexpr OpId kFirst = 4;  // operators
// Each run divides what is left; a step that has so many on one side of each other is no model of blocks.
constexpr int kMostRunsApart = 16;

/// The operators from which on each value is carried, and up to which: kNoOp where it is not.
struct Carried {
  std::vector<OpId> from, to;
};

/// Leaves are not.
Carried carried_by(const Dataflow& flow) {
  Carried carried{std::vector<OpId>(at(flow.values()), kNoOp), std::vector<OpId>(at(flow.values()), kNoOp)};
  for (ValueId v = 0; v < flow.values(); ++v) {
    if (!flow.is_leaf(v)) carried.from[at(v)] = flow.producer(v);
  }
  for (OpId op = 0; op < flow.ops(); ++op) {
    for (ValueId v : flow.inputs(op)) carried.to[at(v)] = op;
  }
  return carried;
}

/// Of a stage: leaves that one of the first operators reads, and others later, are too, unless they are read up to the
/// end as shared weights are: the input of a pipeline's stage is for its first block what that block's result is for
/// the second.
Carried carried_with_inputs(const StepGraph& graph) {
  const Dataflow& flow = graph.flow;
  Carried carried = carried_by(flow);
  if (graph.stages.empty()) return carried;
  for (OpId op = std::min(kFirst, flow.ops()) - 1; op >= 0; --op) {
    for (ValueId v : flow.inputs(op)) {
      if (flow.is_leaf(v) && carried.to[at(v)] > op && carried.to[at(v)] < flow.ops() / 2)
        carried.from[at(v)] = std::max<OpId>(op - 1, 0);  // it is there in front of it
    }
  }
  return carried;
}

/// By position p: values that are carried past it, for at most `reach` operators.
std::vector<std::int32_t> crossing_values(const Dataflow& flow, const Carried& carried, OpId reach) {
  std::vector<std::int32_t> crossing(at(flow.ops()) + 2, 0);
  for (ValueId v = 0; v < flow.values(); ++v) {
    const OpId from = carried.from[at(v)], to = carried.to[at(v)];
    if (from == kNoOp || to <= from || to - from > reach) continue;
    ++crossing[at(from) + 1];
    --crossing[at(to) + 1];
  }
  for (std::size_t p = 1; p < crossing.size(); ++p) crossing[p] += crossing[p - 1];
  return crossing;
}

/// What is read further on than this is carried past the pieces of the step: masks, rotary tables, skips.
OpId far(const Dataflow& flow) { return std::max<OpId>(kFar, flow.ops() / 8); }

std::vector<OpId> cuts_where(const Dataflow& flow, const std::vector<std::int32_t>& crossing, std::int32_t most) {
  std::vector<OpId> cuts{0};
  for (OpId p = 1; p < flow.ops(); ++p) {
    if (crossing[at(p)] > 0 && crossing[at(p)] <= most) cuts.push_back(p);
  }
  if (flow.ops() > 0) cuts.push_back(flow.ops());
  return cuts;
}

/// Bytes that operators before each position make and autograd saves, `of` each value.
template <typename BytesOf>
std::vector<Bytes> saved_before(const StepGraph& graph, BytesOf of) {
  std::vector<Bytes> before(at(graph.flow.ops()) + 1, 0);
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    before[at(op) + 1] = before[at(op)];
    for (const Output& out : graph.flow.outputs(op)) {
      if (graph.values[at(out.value)].saved) before[at(op) + 1] += of(out.value);
    }
  }
  return before;
}

using Run = std::vector<SegmentRange>;  // blocks, one after another

/// How far a sequence goes on alike from two places, by hashes of its prefixes (Karp and Rabin 1987): a logarithm of
/// comparisons each.
class CommonParts {
 public:
  explicit CommonParts(const std::vector<std::size_t>& kinds) : prefix_{0}, power_{1} {
    for (const std::size_t kind : kinds) {
      prefix_.push_back(modulo(times(prefix_.back(), kBase) + kind + 1));
      power_.push_back(times(power_.back(), kBase));
    }
  }
  /// The most n, up to `most`, such that n items from a on equal those from b on.
  [[nodiscard]] std::size_t forward(std::size_t a, std::size_t b, std::size_t most) const {
    return longest(most, [&](std::size_t n) { return hash(a, a + n) == hash(b, b + n); });
  }
  /// The same of the items in front of a and b.
  [[nodiscard]] std::size_t backward(std::size_t a, std::size_t b, std::size_t most) const {
    return longest(most, [&](std::size_t n) { return hash(a - n, a) == hash(b - n, b); });
  }

 private:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1, kBase = 0x1f3d5b79a2c4e681 % kPrime;

  static std::uint64_t modulo(std::uint64_t n) { return n >= kPrime ? n - kPrime : n; }
  static std::uint64_t times(std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return modulo(static_cast<std::uint64_t>(product & kPrime) + static_cast<std::uint64_t>(product >> 61U));
  }
  [[nodiscard]] std::uint64_t hash(std::size_t begin, std::size_t end) const {
    return modulo(prefix_[end] + kPrime - times(prefix_[begin], power_[end - begin]));
  }
  /// Whoever is alike in n is in fewer, too.
  template <class Alike>
  static std::size_t longest(std::size_t most, const Alike& alike) {
    std::size_t step = 1, sure = 0;
    while (sure + step <= most && alike(sure + step)) sure += step, step *= 2;  // most are short
    for (; step > 0; step /= 2) {
      if (sure + step <= most && alike(sure + step)) sure += step;
    }
    return sure;
  }

  std::vector<std::uint64_t> prefix_, power_;
};

/// The longest run of pieces between `cuts` that repeats, of those from `first` up to `last`; of equally long ones that
/// of the shortest period, the first. A run has a multiple of its period in its first repetition, and goes on alike
/// from there and from one period later, so that n / period places tell all runs of a period (Main and Lorentz 1984).
Run longest_run(const std::vector<OpId>& cuts, const CommonParts& parts, std::size_t first, std::size_t last) {
  std::size_t best_begin = 0, best_period = 0, best_length = 0;
  for (std::size_t period = 1; period <= (last - first) / 2; ++period) {
    for (std::size_t place = first; place + period < last;) {
      const std::size_t before = parts.backward(place, place + period, place - first);
      const std::size_t after = parts.forward(place, place + period, last - place - period);
      const std::size_t run = before + after;  // pieces that equal the one a period later
      const std::size_t length = run >= period ? (run + period) / period * period : 0;
      if (length > best_length) {
        best_begin = place - before;
        best_period = period;
        best_length = length;
      }
      place += (after / period + 1) * period;  // the first that is behind this run
    }
  }
  Run blocks;
  for (std::size_t i = best_begin; i < best_begin + best_length; i += best_period) {
    blocks.push_back({cuts[i], cuts[i + best_period]});
  }
  return blocks;
}

/// Runs of blocks in their order: the longest, and those before and behind it whose blocks weigh as much as blocks do.
std::vector<Run> runs_of_blocks(const StepGraph& graph) {
  const std::vector<OpId> cuts =
      cuts_where(graph.flow, crossing_values(graph.flow, carried_with_inputs(graph), far(graph.flow)), 1);
  const std::size_t pieces = cuts.size() - 1;
  // What a piece does, regardless of which values it does it to.
  std::vector<std::size_t> kind(pieces);
  std::unordered_map<std::string, std::size_t> kinds;
  for (std::size_t i = 0; i < pieces; ++i) {
    std::string names;
    for (OpId op = cuts[i]; op < cuts[i + 1]; ++op) names += graph.ops[at(op)].name + ";";
    kind[i] = kinds.try_emplace(std::move(names), kinds.size()).first->second;
  }
  const CommonParts parts(kind);
  const std::vector<Bytes> saved = saved_before(graph, [&](ValueId v) { return graph.values[at(v)].bytes; });
  const auto weight = [&](const Run& run) {
    return (saved[at(run.back().end)] - saved[at(run.front().begin)]) / static_cast<Bytes>(run.size());
  };
  std::vector<Run> runs;
  struct Stretch {
    std::size_t first, last;
    int depth;
  };
  std::vector<Stretch> left{{0, pieces, 0}};  // to look at
  Bytes least = 0;
  while (!left.empty()) {
    const auto [first, last, depth] = left.back();
    left.pop_back();
    if (depth > kMostRunsApart) continue;
    Run run = longest_run(cuts, parts, first, last);
    if (run.empty() || weight(run) < least) continue;
    if (runs.empty()) least = std::max<Bytes>(weight(run) / kLighter, 1);
    const auto piece_at = [&](OpId op) {
      return static_cast<std::size_t>(std::ranges::lower_bound(cuts, op) - cuts.begin());
    };
    left.push_back({first, piece_at(run.front().begin), depth + 1});
    left.push_back({piece_at(run.back().end), last, depth + 1});
    runs.push_back(std::move(run));
  }
  std::ranges::sort(runs, {}, [](const Run& run) { return run.front().begin; });
  return runs;
}

/// Between blocks, every so many of them, and inside of each alike where there is room for it. Empty: there are too few
/// blocks. Those whose values are all on other devices stay together.
std::vector<OpId> cuts_by_blocks(const StepGraph& graph, const std::vector<OpId>& cuts, std::size_t limit,
                                 const std::vector<Bytes>& saved) {
  std::vector<Run> runs = runs_of_blocks(graph);
  std::erase_if(runs, [&](const Run& run) { return saved[at(run.front().begin)] == saved[at(run.back().end)]; });
  std::size_t blocks = 0;
  for (const Run& run : runs) blocks += run.size();
  // One more piece before each run, and one behind the last.
  if (blocks == 0 || blocks < limit / 4 || limit <= runs.size() + 1) return {};
  const std::size_t room = limit - runs.size() - 1;
  const std::size_t group = (blocks + room - 1) / room;
  const std::size_t parts = std::max<std::size_t>(room / blocks, 1);
  // A block may begin with a write to what the one before has made: no cut is there.
  const auto cut_from = [&](OpId position) { return *std::ranges::lower_bound(cuts, position); };
  std::vector<OpId> chosen{0};
  const auto add = [&](OpId cut) {
    if (cut > chosen.back()) chosen.push_back(cut);
  };
  for (const Run& run : runs) {
    for (std::size_t i = 0; i < run.size(); i += group) {
      const OpId begin = cut_from(run[i].begin), end = cut_from(run[i].end);
      if (begin == end) continue;
      add(begin);
      const auto inner = std::ranges::upper_bound(cuts, begin);
      const auto count = static_cast<std::size_t>(std::ranges::lower_bound(cuts, end) - inner);
      for (std::size_t part = 1; part < std::min(parts, count + 1); ++part) {
        add(inner[static_cast<std::ptrdiff_t>(part * (count + 1) / std::min(parts, count + 1) - 1)]);
      }
    }
    add(cut_from(run.back().end));
  }
  add(graph.flow.ops());
  return chosen;
}

/// Some of the cuts, so that the pieces between them save about equally much, and pieces that look alike stay so.
std::vector<OpId> evenly(const StepGraph& graph, const std::vector<OpId>& cuts, std::size_t limit) {
  const std::vector<Bytes> saved = saved_before(graph, [&](ValueId v) { return graph.step_bytes(v); });
  std::vector<OpId> candidates = cuts_by_blocks(graph, cuts, limit, saved);
  if (candidates.empty()) candidates = cuts;
  if (candidates.size() - 1 <= limit) return candidates;
  const auto weight = [&](OpId op) { return saved[at(op)] + op; };  // no piece weighs nothing
  const Bytes all = weight(graph.flow.ops());
  std::vector<OpId> chosen{0};
  for (std::size_t i = 1; i + 1 < candidates.size(); ++i) {
    const Bytes due = all * static_cast<Bytes>(chosen.size()) / static_cast<Bytes>(limit);
    if (weight(candidates[i]) >= due && chosen.size() < limit) chosen.push_back(candidates[i]);
  }
  chosen.push_back(graph.flow.ops());
  return chosen;
}

}  // namespace

std::vector<OpId> cut_points(const StepGraph& graph, int crossing) {
  return cuts_where(graph.flow, crossing_values(graph.flow, carried_by(graph.flow), graph.flow.ops()), crossing);
}

std::vector<OpId> chain_cuts(const StepGraph& graph, std::size_t limit) {
  const Dataflow& flow = graph.flow;
  const OpId ops = flow.ops();
  std::vector<std::int32_t> inside_write(at(ops) + 2, 0);  // writes that the position separates from what they write to
  for (OpId op = 0; op < ops; ++op) {
    for (const Output& out : flow.outputs(op)) {
      if (out.overwrites == kNoValue || flow.is_leaf(out.overwrites)) continue;
      ++inside_write[at(flow.producer(out.overwrites)) + 1];
      --inside_write[at(op) + 1];
    }
  }
  for (std::size_t p = 1; p < inside_write.size(); ++p) inside_write[p] += inside_write[p - 1];
  const std::vector<std::int32_t> crossing = crossing_values(flow, carried_by(flow), far(flow));
  std::vector<OpId> cuts;
  // As many values as it takes to find a few cuts.
  for (std::int32_t most = 1; most <= 4 && cuts.size() < 3; ++most) {
    cuts.clear();
    for (OpId p = 1; p < ops; ++p) {
      if (crossing[at(p)] <= most && inside_write[at(p)] == 0) cuts.push_back(p);
    }
  }
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(ops);
  if (cuts.size() - 1 <= limit) return cuts;
  return evenly(graph, cuts, limit);
}

std::vector<SegmentRange> repeated_blocks(const StepGraph& graph) {
  std::vector<SegmentRange> blocks;
  for (const Run& run : runs_of_blocks(graph)) blocks.insert(blocks.end(), run.begin(), run.end());
  return blocks;
}

}  // namespace snug::plan
