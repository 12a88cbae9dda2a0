#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "snug/plan/budget.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"
#include "snug/plan/trade_off.h"

namespace snug::plan {

/// The searches that plan_everywhere has made for one step: for a device, and what plans say of values on the others. A
/// budget that is asked for again, or one under which the others' plans are the same, needs none. Any thread.
class DeviceSearches {
 public:
  /// That of `graph`, with its values' Must; searched if it is not there. Others than static bytes of the graph do not
  /// change.
  [[nodiscard]] std::shared_ptr<const TradeOff> of(const StepGraph& graph, SearchOptions options);
  /// How many have been made.
  [[nodiscard]] std::size_t made() const;

 private:
  struct Search {
    std::string device;
    std::vector<Must> musts;
    std::shared_ptr<const TradeOff> found;
  };
  mutable std::mutex mutex_;
  std::list<Search> latest_;  // used latest, first
  std::size_t made_ = 0;
};

/// A plan for a step whose values are on several devices with a budget each, from one for its first device: values
/// are planned device by device, with what is decided of those elsewhere, until all fit together. `first`: a plan that
/// fits the first device's. Devices whose memory the graph has no figures of are left to evictions. Throws
/// DoesNotFit, naming the device, where no plan that is found fits. The same plan whatever `searches` has.
MemoryPlan plan_everywhere(const StepGraph& graph, MemoryPlan first, const Budgets& budgets, DeviceSearches& searches,
                           SearchOptions options = {});

/// The plan as it is, which has nothing else to offer, with what it takes of further devices. Throws DoesNotFit, naming
/// the device, where that is too much.
MemoryPlan checked_everywhere(const StepGraph& graph, MemoryPlan plan, const Budgets& budgets);

}  // namespace snug::plan
