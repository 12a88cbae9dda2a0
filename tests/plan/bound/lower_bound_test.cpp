#include "snug/plan/bound/lower_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "snug/plan/bound/relaxation.h"
#include "snug/plan/bound/unavoidable.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

/// What the tightest single moment proves.
double of_one_moment(const StepGraph& graph, Bytes peak) {
  const std::vector<Bytes> unavoidable = unavoidable_bytes(graph);
  double most = 0;
  for (std::size_t event = 0; event < graph.events.size(); ++event) {
    const Moment moment(graph, event);
    most =
        std::max(most, Relaxation(graph, moment).least_seconds(static_cast<double>(peak - unavoidable[event])).seconds);
  }
  return graph.step_seconds + most;
}

TEST(LowerBound, ProvesMoreFromTwoMomentsThanFromAnyOne) {
  int more = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const StepGraph graph = synthetic::random_graph(seed, 40);
    const Bytes least = lower_bound_of_peak(graph), most = simulate(graph, plan_none(graph)).peak;
    for (int percent : {20, 50, 80}) {
      const Bytes peak = least + (most - least) * percent / 100;
      const double one = of_one_moment(graph, peak), both = lower_bound(graph, peak).step_seconds;
      if (both > one * (1 + 1e-9)) ++more;
    }
  }
  // Of 120. A bound that forgets part of a moment is still true, and more in fewer of them.
  EXPECT_GE(more, 17);
}

}  // namespace
}  // namespace snug::plan
