#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "snug/plan/step/step_graph.h"

namespace snug::replay {

/// Decides which steps without a plan get one: those that come a second time. Where steps do not come again, as with
/// data-dependent shapes (a mixture of experts, ragged text), or plans are made and none is followed, it stops for as
/// long as that lasts. Pure; not synchronized.
class NewSteps {
 public:
  /// Whether a step that has no plan is to be profiled.
  [[nodiscard]] bool profiles() const noexcept { return in_vain_ < kPatience && unfollowed_ < kMostUnfollowed; }

  /// A step has followed a plan that this class has asked for.
  void followed() noexcept { unfollowed_ = 0; }

  /// A step without a plan has run. `key`: a hash of its operators and its kind. `graph`: what the profiler found, if
  /// it was profiled. Returns the graph to plan where the step came before.
  std::optional<plan::StepGraph> ran(std::uint64_t key, std::optional<plan::StepGraph> graph);

 private:
  static constexpr int kPatience = 8;
  static constexpr int kMostUnfollowed = 16;
  static constexpr std::size_t kMostOperators = 250'000;  // a thousand of them take half a MiB
  static constexpr std::size_t kMostKeys = 1U << 20U;
  void forget_old();

  ska::flat_hash_map<std::uint64_t, std::optional<plan::StepGraph>> seen_;
  std::deque<std::uint64_t> with_graph_;  // the oldest first
  std::size_t operators_ = 0;             // of the graphs
  int in_vain_ = 0;                       // steps in a row that had not come before
  int unfollowed_ = 0;                    // graphs to plan since a step followed the plan of one
};

}  // namespace snug::replay
