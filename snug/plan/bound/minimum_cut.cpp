#include "snug/plan/bound/minimum_cut.h"

#include <boost/graph/boykov_kolmogorov_max_flow.hpp>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/property_map/function_property_map.hpp>

#include <algorithm>
#include <numeric>

namespace snug::plan {
namespace {

struct FlowEdge {
  CutNetwork::Capacity capacity = 0;
  CutNetwork::Capacity residual = 0;
  std::size_t reverse = 0;  // position of the edge in the other direction
};

}  // namespace

CutNetwork::Cut CutNetwork::minimum() const {
  using Graph = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, FlowEdge>;
  using EdgeId = boost::graph_traits<Graph>::edge_descriptor;
  const auto vertices = static_cast<std::size_t>(nodes_) + 2;
  // Each edge and its reverse, sorted by where they start, as the compressed rows want them.
  struct Half {
    std::size_t from, to;
    Capacity capacity;
    std::size_t twin;
  };
  std::vector<Half> halves;
  halves.reserve(edges_.size() * 2);
  for (const Edge& e : edges_) {
    const std::size_t i = halves.size();
    halves.push_back({static_cast<std::size_t>(e.from), static_cast<std::size_t>(e.to), e.capacity, i + 1});
    halves.push_back({static_cast<std::size_t>(e.to), static_cast<std::size_t>(e.from), 0, i});
  }
  std::vector<std::size_t> order(halves.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return halves[i].from; });
  std::vector<std::size_t> position(halves.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  std::vector<std::pair<std::size_t, std::size_t>> ends;
  std::vector<FlowEdge> properties;
  ends.reserve(halves.size());
  properties.reserve(halves.size());
  for (const std::size_t i : order) {
    ends.emplace_back(halves[i].from, halves[i].to);
    properties.push_back({halves[i].capacity, 0, position[halves[i].twin]});
  }
  Graph graph(boost::edges_are_sorted, ends.begin(), ends.end(), properties.begin(), vertices);
  std::vector<EdgeId> edge_at(halves.size());
  for (auto [e, end] = boost::edges(graph); e != end; ++e) edge_at[get(boost::edge_index, graph, *e)] = *e;
  const auto reverse =
      boost::make_function_property_map<EdgeId>([&](const EdgeId& e) { return edge_at[graph[e].reverse]; });
  std::vector<boost::default_color_type> color(vertices);
  std::vector<EdgeId> predecessor(vertices);
  std::vector<long> distance(vertices);
  const auto index = get(boost::vertex_index, graph);
  Cut cut;
  cut.capacity =
      boost::boykov_kolmogorov_max_flow(graph, get(&FlowEdge::capacity, graph), get(&FlowEdge::residual, graph),
                                        reverse, boost::make_iterator_property_map(predecessor.begin(), index),
                                        boost::make_iterator_property_map(color.begin(), index),
                                        boost::make_iterator_property_map(distance.begin(), index), index,
                                        static_cast<std::size_t>(nodes_), static_cast<std::size_t>(nodes_) + 1);
  cut.source_side.resize(static_cast<std::size_t>(nodes_));
  for (std::size_t v = 0; v < cut.source_side.size(); ++v)
    cut.source_side[v] = color[v] == boost::default_color_type::black_color;
  return cut;
}

}  // namespace snug::plan
