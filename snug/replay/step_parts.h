#pragma once

#include <cstddef>

#include "snug/plan/budget.h"

namespace snug::replay {

/// visit(device, part, bytes, by tag) of the memory that the step has: by device in the order of the budgets, by part
/// in the order of the graph's, the first of which is 0; where the graph has figures of it.
template <class Graph, class Visit>
void for_each_part(Graph& graph, const plan::Budgets& budgets, const Visit& visit) {
  visit(std::size_t{0}, std::size_t{0}, graph.static_bytes, graph.static_by_tag);
  for (std::size_t i = 0; i < budgets.others.size(); ++i) {
    for (std::size_t k = 0; k < graph.parts.size(); ++k) {
      auto& part = graph.parts[k];
      if (graph.devices[static_cast<std::size_t>(part.device)] == budgets.others[i].device)
        visit(i + 1, k + 1, part.static_bytes, part.static_by_tag);
    }
  }
}

}  // namespace snug::replay
