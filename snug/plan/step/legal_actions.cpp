#include "snug/plan/step/legal_actions.h"

#include <algorithm>
#include <array>

namespace snug::plan {
namespace {

struct Actions {
  std::array<Action, 5> all;
  std::size_t count;
};
constexpr std::size_t kCodecCount = 5;

constexpr Actions free_actions(Codec codec, bool to_host, bool to_disk) {
  Actions actions{{kKeep, kRecompute}, 2};
  if (codec != Codec::None) actions.all[actions.count++] = compressed(codec);
  if (to_host) actions.all[actions.count++] = kMove;
  if (to_disk) actions.all[actions.count++] = kMoveToDisk;
  return actions;
}
// By codec, and by whether there is a host and a disk.
constexpr auto kFree = [] {
  std::array<std::array<std::array<Actions, 2>, 2>, kCodecCount> free{};
  for (std::size_t codec = 0; codec < kCodecCount; ++codec) {
    for (const bool host : {false, true}) {
      for (const bool disk : {false, true}) free[codec][host][disk] = free_actions(Codec(codec), host, disk);
    }
  }
  return free;
}();
constexpr std::array kOnlyKeep = {kKeep};
constexpr std::array kOnlyRecompute = {kRecompute};

}  // namespace

std::span<const Action> legal_actions(const StepGraph& graph, ValueId value) {
  if (graph.flow.is_leaf(value)) return kOnlyKeep;  // there is no operator to run again
  switch (graph.values[at(value)].must) {
    case Must::Keep:
      return kOnlyKeep;
    case Must::Recompute:
      return kOnlyRecompute;
    case Must::Nothing:
      break;
  }
  const ValueInfo& info = graph.values[at(value)];
  const bool takes_memory = info.saved && graph.step_bytes(value) > 0;
  const Codec codec = takes_memory && info.encoding ? info.encoding->codec : Codec::None;
  const bool to_host = takes_memory && graph.moves.host, to_disk = takes_memory && graph.moves.disk;
  const Actions& actions = kFree[static_cast<std::size_t>(codec)][to_host][to_disk];
  return std::span(actions.all).first(actions.count);
}

bool may_move(const StepGraph& graph, ValueId value) {
  return std::ranges::any_of(legal_actions(graph, value), is_moved);
}

Bytes bytes_held(const StepGraph& graph, ValueId value, Action action) {
  if (action == kKeep) return graph.step_bytes(value);
  const auto& encoding = graph.values[at(value)].encoding;
  return is_compressed(action) && encoding ? encoding->bytes : 0;
}

std::vector<Action> other_actions(const StepGraph& graph, const MemoryPlan& plan, ValueId value) {
  std::vector<Action> others;
  for (const Action& action : legal_actions(graph, value)) {
    if (action != plan.action(value)) others.push_back(action);
  }
  return others;
}

}  // namespace snug::plan
