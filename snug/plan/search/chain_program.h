#pragma once

#include <cstddef>
#include <vector>

#include "snug/plan/search/chain.h"
#include "snug/plan/step/memory_plan.h"

namespace snug::plan {

/// Plans for the chain of `graph` under budgets spread from `least` to `most` bytes of peak: for each a plan with the
/// fewest seconds that the program finds. Sorted by budget, the largest first; budgets that nothing meets are left out.
///
/// A dynamic program over (first piece, last piece, room), as Rotor's (Beaumont et al. 2019, "Optimal checkpointing for
/// heterogeneous chains", arXiv 1911.13214), with several options for each piece in place of "save all". Either the
/// first piece runs under an option and the rest follows in the room that is left; or pieces up to some cut run without
/// keeping anything, the rest follows, and then they are run again as a chain of their own. The second becomes a
/// segment, and segments nest.
/// There are at most `most_rooms` budgets, and at most plans_per_stage().
std::vector<MemoryPlan> chain_plans(const StepGraph& graph, const Chain& chain, Bytes least, Bytes most,
                                    std::size_t most_rooms = 2048);

}  // namespace snug::plan
