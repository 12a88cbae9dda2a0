#include "snug/plan/step/step_walk.h"

#include <gtest/gtest.h>

#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

/// Runs `a`, writes it over as `b`, saves b, lets go of it, and asks for it in backward.
struct Example {
  ValueId leaf, a, b;
  StepGraph graph;
};
Example a_written_over() {
  synthetic::GraphBuilder g(1000);
  Example e;
  e.leaf = g.leaf();
  e.a = g.op("a", {e.leaf}, 100, /*seconds=*/1, /*workspace=*/20);
  e.b = g.in_place("b", {e.a}, e.a, 2);
  g.save(e.b);
  g.other(50, 7);
  g.die(e.b);
  g.settle();
  g.unpack(e.b);
  g.release(e.b);
  e.graph = g.take();
  e.graph.ops[0].other_bytes = 3;
  return e;
}

TEST(StepWalk, HasWhatAnEventMakesAndWhatItEndsWhileItHappens) {
  const Example e = a_written_over();
  StepWalk walk(e.graph);
  struct Seen : StepVisitor {
    Seen(const StepWalk& w, const Example& ex) : walk(w), example(ex) {}
    void run(OpId op) {
      alive.push_back({walk.alive(example.a), walk.alive(example.b)});
      EXPECT_EQ(walk.ops(), op + 1);
      EXPECT_EQ(walk.position(), static_cast<std::size_t>(op));
    }
    void die(ValueId v) { EXPECT_TRUE(walk.alive(v)); }
    void unpack(ValueId v) { EXPECT_TRUE(walk.unpacked(v)); }
    void release(ValueId v) { EXPECT_TRUE(walk.unpacked(v)); }
    const StepWalk& walk;
    const Example& example;
    std::vector<std::pair<bool, bool>> alive;
  } seen(walk, e);
  EXPECT_FALSE(walk.alive(e.a));
  walk.step(seen);
  EXPECT_EQ(walk.unowned(), 1003);
  walk.step(seen);
  EXPECT_FALSE(walk.alive(e.a)) << "b took its storage";
  EXPECT_TRUE(walk.alive(e.b));
  EXPECT_TRUE(walk.overwritten(e.a));
  while (!walk.at_end()) walk.step(seen);
  EXPECT_EQ(seen.alive, (std::vector<std::pair<bool, bool>>{{true, false}, {true, true}}));
}

TEST(StepWalk, TellsOfEachEventOnce) {
  const Example e = a_written_over();
  StepWalk walk(e.graph);
  struct Told : StepVisitor {
    void run(OpId op) { text += "run" + std::to_string(op) + " "; }
    void die(ValueId v) { text += "die" + std::to_string(v) + " "; }
    void save(ValueId v) { text += "save" + std::to_string(v) + " "; }
    void settle() { text += "settle "; }
    void unpack(ValueId v) { text += "unpack" + std::to_string(v) + " "; }
    void release(ValueId v) { text += "release" + std::to_string(v); }
    void other(Bytes peak, Bytes net) { text += "other" + std::to_string(peak) + "," + std::to_string(net) + " "; }
    std::string text;
  } told;
  while (!walk.at_end()) walk.step(told);
  EXPECT_EQ(told.text, "run0 run1 save2 other50,7 die2 settle unpack2 release2");
  EXPECT_TRUE(walk.settled());
  EXPECT_FALSE(walk.alive(e.b));
  EXPECT_FALSE(walk.unpacked(e.b));
  EXPECT_EQ(walk.unowned(), 1010);
}

TEST(Lifetimes, AreWhenTheProgramLetsGoAndWhenBackwardAsksLast) {
  const Example e = a_written_over();
  const std::vector<Lifetime> lives = lifetimes(e.graph);
  EXPECT_EQ(lives[at(e.b)].dies, 4U);
  EXPECT_EQ(lives[at(e.b)].last_unpack, 6U);
  EXPECT_EQ(lives[at(e.a)].dies, Lifetime::kNever);
  EXPECT_EQ(lives[at(e.leaf)].last_unpack, Lifetime::kNever);
}

}  // namespace
}  // namespace snug::plan
