// The ledger's transitions as a pure function, explored breadth-first: every state that callers on two threads can
// bring about over small flows, by whatever order of holding, packing, evicting, fetching, overwriting, unpacking and
// releasing.
#include <gtest/gtest.h>

#include <deque>
#include <ostream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/plan/run/ledger_world.h"

namespace snug::plan {
namespace {

using world::Limits;
using world::State;
using world::Transition;
using world::World;

/// How each state was reached first.
struct Origin {
  std::size_t from;
  Transition action;
};

struct Explored {
  std::size_t states = 0;
  std::size_t transitions = 0;
  std::size_t over = 0;  // states in which nothing is left to do
  std::string broken;    // the first promise that was, and how to get there by the shortest way
};

std::string way_to(const std::vector<Origin>& origins, std::size_t state, const Transition& last) {
  std::string way = last.text();
  for (std::size_t i = state; i != 0; i = origins[i].from) way = origins[i].action.text() + "; " + way;
  return way;
}

Explored explore(const World& world) {
  Explored found;
  std::unordered_map<std::string, std::size_t> known;
  std::vector<Origin> origins;
  std::deque<std::pair<std::size_t, State>> next;
  const auto add = [&](State state, Origin origin) {
    if (!known.try_emplace(World::key(state), known.size()).second) return;
    world.check(state);
    world.check_progress(state);
    if (world.over(state)) ++found.over;
    origins.push_back(origin);
    next.emplace_back(origins.size() - 1, std::move(state));
  };
  add(world.first(), {0, {Transition::Kind::Record}});
  for (; !next.empty(); next.pop_front()) {
    const auto& [index, state] = next.front();
    for (const Transition& action : world.legal(state)) {
      try {
        ++found.transitions;
        add(world.after(state, action), {index, action});
      } catch (const world::Broken& broken) {
        found.broken = std::string(broken.what()) + " after: " + way_to(origins, index, action);
        return found;
      }
    }
  }
  found.states = known.size();
  return found;
}

struct Shape {
  const char* name;
  Dataflow flow;
  Limits limits;
  std::size_t states;  // that were found; fewer mean that the exploration has shrunk
};

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

/// Appends an operator with as many results as `overwritten`, each over that value or, for kNoValue, new.
void add_op(Dataflow& flow, const std::vector<ValueId>& inputs, const std::vector<ValueId>& overwritten = {kNoValue},
            SegmentId segment = kRootSegment) {
  flow.add_op(inputs, segment);
  for (ValueId before : overwritten) flow.add_output(before);
}

Dataflow leaf_then(const std::vector<std::vector<ValueId>>& inputs) {
  Dataflow flow;
  flow.add_leaf();
  for (const auto& of_op : inputs) add_op(flow, of_op);
  return flow;
}

/// No leaf: the first operator draws numbers, for one.
Dataflow drawn_then(const std::vector<std::vector<ValueId>>& inputs) {
  Dataflow flow;
  add_op(flow, {});
  for (const auto& of_op : inputs) add_op(flow, of_op);
  return flow;
}

Dataflow overwritten(bool read) {
  Dataflow flow;
  add_op(flow, {});
  add_op(flow, read ? std::vector<ValueId>{0} : std::vector<ValueId>{}, {0});
  add_op(flow, {1});
  return flow;
}

Dataflow overwritten_twice() {
  Dataflow flow;
  add_op(flow, {});
  add_op(flow, {0}, {0});
  add_op(flow, {1}, {1});
  return flow;
}

Dataflow two_results_of_a_leaf() {
  Dataflow flow;
  flow.add_leaf();
  add_op(flow, {0}, {kNoValue, kNoValue});
  return flow;
}

Dataflow two_results_and_one_overwritten() {
  Dataflow flow;
  add_op(flow, {}, {kNoValue, kNoValue});
  add_op(flow, {0, 1}, {0});
  return flow;
}

Dataflow nested_segment() {
  Dataflow flow;
  const SegmentId nested = flow.open_segment(kRootSegment);
  add_op(flow, {});
  add_op(flow, {0}, {kNoValue}, nested);
  add_op(flow, {1});
  return flow;
}

class LedgerStates : public ::testing::TestWithParam<Shape> {};

TEST_P(LedgerStates, KeepWhatIsNeededDropWhatIsNotAndGetEveryValueBack) {
  const Shape& shape = GetParam();
  const Explored found = explore(World(shape.flow, shape.limits));
  ASSERT_EQ(found.broken, "");
  EXPECT_GE(found.states, shape.states);
  EXPECT_GT(found.over, 0U);
  RecordProperty("states", static_cast<int>(found.states));
  RecordProperty("transitions", static_cast<int>(found.transitions));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LedgerStates,
    ::testing::Values(Shape{"Chain", leaf_then({{0}, {1}}), {}, 24'859},
                      Shape{"ChainWithoutLeaf", drawn_then({{0}, {1}}), {}, 47'575},
                      Shape{"FanOutOfALeaf", leaf_then({{0}, {0}}), {}, 19'256},
                      Shape{"FanOut", drawn_then({{0}, {0}}), {}, 42'483},
                      Shape{"Diamond", drawn_then({{0}, {0, 1}}), {}, 57'691},
                      Shape{"ReadTwice", drawn_then({{0, 0}, {1}}), {}, 47'575},
                      Shape{"OverwrittenInPlace", overwritten(true), {}, 42'269},
                      Shape{"ReplacedWhole", overwritten(false), {}, 24'237},
                      Shape{"OverwrittenTwice", overwritten_twice(), {}, 37'127},
                      Shape{"TwoResultsOfALeaf", two_results_of_a_leaf(), {}, 25'244},
                      Shape{"TwoResultsAndOneOverwritten", two_results_and_one_overwritten(), {}, 48'989},
                      Shape{"NestedSegment", nested_segment(), {}, 45'147},
                      Shape{"TwoSavedTensorsEach", leaf_then({{0}, {1}}), {.saved = 2, .offloads = false}, 26'877},
                      Shape{"TwoPasses", leaf_then({{0}, {1}}), {.passes = 2}, 49'546},
                      Shape{
                          "UnpackedWhileRecording", leaf_then({{0}, {1}}), {.unpacks_while_recording = true}, 357'010}),
    [](const ::testing::TestParamInfo<Shape>& shape) { return shape.param.name; });

}  // namespace
}  // namespace snug::plan
