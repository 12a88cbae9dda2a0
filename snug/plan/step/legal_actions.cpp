#include "snug/plan/step/legal_actions.h"

#include <algorithm>
#include <array>

namespace snug::plan {
namespace {

struct Actions {
  std::array<Action, 6> all;
  std::size_t count;
};

constexpr Actions free_actions(Codec exact, Codec lossy, bool to_host, bool to_disk) {
  Actions actions{{kKeep, kRecompute}, 2};
  for (const Codec codec : {exact, lossy}) {
    if (codec != Codec::None) actions.all[actions.count++] = compressed(codec);
  }
  if (to_host) actions.all[actions.count++] = kMove;
  if (to_disk) actions.all[actions.count++] = kMoveToDisk;
  return actions;
}
// By codecs, of both kinds, and by whether there is a host and a disk.
constexpr auto kFree = [] {
  std::array<std::array<std::array<std::array<Actions, 2>, 2>, kCodecs>, kCodecs> free{};
  for (std::size_t exact = 0; exact < kCodecs; ++exact) {
    for (std::size_t lossy = 0; lossy < kCodecs; ++lossy) {
      for (const bool host : {false, true}) {
        for (const bool disk : {false, true})
          free[exact][lossy][host][disk] = free_actions(Codec(exact), Codec(lossy), host, disk);
      }
    }
  }
  return free;
}();

Codec codec_of(const Encodings& encodings, bool lossy) {
  const auto found = std::ranges::find(encodings, lossy, [](const Encoding& e) { return is_lossy(e.codec); });
  return found != encodings.end() ? found->codec : Codec::None;
}
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
  static const Encodings kNone;
  const Encodings& encodings = takes_memory ? info.encodings : kNone;
  const auto exact = static_cast<std::size_t>(codec_of(encodings, /*lossy=*/false));
  const auto lossy = static_cast<std::size_t>(codec_of(encodings, /*lossy=*/true));
  const bool to_host = takes_memory && graph.moves.host, to_disk = takes_memory && graph.moves.disk;
  const Actions& actions = kFree[exact][lossy][to_host][to_disk];
  return std::span(actions.all).first(actions.count);
}

bool may_move(const StepGraph& graph, ValueId value) {
  return std::ranges::any_of(legal_actions(graph, value), is_moved);
}

Bytes bytes_held(const StepGraph& graph, ValueId value, Action action) {
  if (action == kKeep) return graph.step_bytes(value);
  const Encoding* const encoding = find_encoding(graph.values[at(value)].encodings, action.codec);
  return is_compressed(action) && encoding != nullptr ? encoding->bytes : 0;
}

std::vector<Action> other_actions(const StepGraph& graph, const MemoryPlan& plan, ValueId value) {
  std::vector<Action> others;
  for (const Action& action : legal_actions(graph, value)) {
    if (action != plan.action(value)) others.push_back(action);
  }
  return others;
}

}  // namespace snug::plan
