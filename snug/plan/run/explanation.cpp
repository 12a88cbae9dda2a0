#include "snug/plan/run/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/plan/step/pieces.h"

namespace snug::plan {
namespace {

std::vector<Share> empty_pieces(const StepGraph& graph) {
  std::vector<Share> pieces;
  const auto add = [&](std::string name, OpId begin, OpId end) {
    if (end <= begin) return;
    Share piece;
    piece.name = std::move(name);
    piece.begin = begin;
    piece.end = end;
    pieces.push_back(std::move(piece));
  };
  const std::vector<SegmentRange> blocks = repeated_blocks(graph);
  if (blocks.empty()) {
    const std::vector<OpId> cuts = chain_cuts(graph, 16);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) add(fmt::format("piece {}", i + 1), cuts[i], cuts[i + 1]);
    return pieces;
  }
  add("before the blocks", 0, blocks.front().begin);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0) add("between blocks", blocks[i - 1].end, blocks[i].begin);
    add(fmt::format("block {}", i + 1), blocks[i].begin, blocks[i].end);
  }
  add("after the blocks", blocks.back().end, graph.flow.ops());
  return pieces;
}

/// The longest path that both are in: "layers.1" of "layers.1.norm" and "layers.1.mlp.up".
std::string common_module(const std::string& a, const std::string& b) {
  std::size_t end = 0;
  for (std::size_t i = 0;; ++i) {
    const bool a_ends = i == a.size(), b_ends = i == b.size();
    if ((a_ends || a[i] == '.') && (b_ends || b[i] == '.')) end = i;
    if (a_ends || b_ends || a[i] != b[i]) return a.substr(0, end);
  }
}

}  // namespace

Explanation explain(const StepGraph& graph, const MemoryPlan& plan) {
  const Simulation run = simulate(graph, plan, Detail::Timeline);
  Explanation result;
  result.pieces = empty_pieces(graph);
  result.all.name = "the step";
  result.all.end = graph.flow.ops();
  result.host_peak = run.host_peak;
  result.disk_peak = run.disk_peak;
  result.waiting = run.waiting_seconds;
  std::map<std::string, Share> by_name;
  if (!run.times.empty()) result.peak_seconds = run.times[run.peak_event];
  for (Share& piece : result.pieces) {
    piece.module = graph.ops[at(piece.begin)].module;
    for (OpId op = piece.begin; op < piece.end; ++op) {
      const OpInfo& info = graph.ops[at(op)];
      piece.module = common_module(piece.module, info.module);
      Share& named = by_name[info.name];
      named.name = info.name;
      const auto replays = run.replays[at(op)];
      Share here;
      for (const Output& out : graph.flow.outputs(op)) {
        if (!graph.values[at(out.value)].saved) continue;
        const Bytes bytes = graph.step_bytes(out.value);
        const Action action = decided(graph, plan, out.value);
        switch (action.home) {
          case Home::Device:
            if (is_lossy(action)) {
              here.lossy += bytes;
              here.lossy_encoded += bytes_held(graph, out.value, action);
            } else if (is_compressed(action)) {
              here.compressed += bytes;
              here.encoded += bytes_held(graph, out.value, action);
            } else {
              here.kept += bytes;
            }
            break;
          case Home::Host:
          case Home::Disk:
            here.moved += bytes;
            break;
          case Home::Nowhere:
            here.recomputed += bytes;
            break;
        }
      }
      for (Share* share : {&piece, &named, &result.all}) {
        share->kept += here.kept;
        share->moved += here.moved;
        share->compressed += here.compressed;
        share->encoded += here.encoded;
        share->lossy += here.lossy;
        share->lossy_encoded += here.lossy_encoded;
        share->recomputed += here.recomputed;
        share->seconds += replays * info.seconds;
        share->replayed_ops += replays;
      }
    }
  }
  for (auto& [name, share] : by_name) {
    if (share.replayed_ops > 0 || share.recomputed > 0) result.operators.push_back(std::move(share));
  }
  std::ranges::stable_sort(result.operators, std::ranges::greater(), &Share::seconds);
  return result;
}

}  // namespace snug::plan
