#include "snug/replay/new_steps.h"

#include <utility>

namespace snug::replay {

std::optional<plan::StepGraph> NewSteps::ran(std::uint64_t key, std::optional<plan::StepGraph> graph) {
  if (seen_.size() >= kMostKeys) {
    seen_.clear();
    with_graph_.clear();
    operators_ = 0;
  }
  const auto [found, is_new] = seen_.emplace(key, std::nullopt);
  if (!is_new) {
    in_vain_ = 0;  // steps come again: they are worth profiling
    if (unfollowed_ >= kMostUnfollowed || (!graph && !found->second)) return std::nullopt;
    ++unfollowed_;
    std::optional<plan::StepGraph> to_plan = graph ? std::move(graph) : std::move(found->second);
    if (found->second) operators_ -= found->second->ops.size();
    found->second.reset();
    return to_plan;
  }
  ++in_vain_;
  if (graph) {
    operators_ += graph->ops.size();
    found->second = std::move(graph);
    with_graph_.push_back(key);
    forget_old();
  }
  return std::nullopt;
}

/// The graphs of steps that came longest ago. That they came stays known.
void NewSteps::forget_old() {
  while (operators_ > kMostOperators && with_graph_.size() > 1) {
    const auto oldest = seen_.find(with_graph_.front());
    with_graph_.pop_front();
    if (oldest == seen_.end() || !oldest->second) continue;
    operators_ -= oldest->second->ops.size();
    oldest->second.reset();
  }
}

}  // namespace snug::replay
