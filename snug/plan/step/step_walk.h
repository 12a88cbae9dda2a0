#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// What a StepWalk tells of: derive, and hide what matters.
struct StepVisitor {
  void run(OpId /*op*/) {}
  void die(ValueId /*value*/) {}
  void save(ValueId /*value*/) {}
  void settle() {}
  void unpack(ValueId /*value*/) {}
  void release(ValueId /*value*/) {}
  void other(Bytes /*peak*/, Bytes /*net*/) {}
};

/// Goes through the events of a step and says what they do whatever any plan says: what the program and backward nodes
/// refer to, which operators have run, the memory that no value has. The one reading of events, which the simulator,
/// the bounds and the searches share.
class StepWalk {
 public:
  /// Before the first event. `graph` must outlive this.
  explicit StepWalk(const StepGraph& graph);

  [[nodiscard]] bool at_end() const noexcept { return next_ == end_; }
  /// Of the next event, or the one that happens, in StepGraph::events.
  [[nodiscard]] std::size_t position() const { return static_cast<std::size_t>(next_ - graph_->events.data()); }

  /// Goes on by one event. `visitor` is told of it while it happens: what it makes and what it ends are both there.
  template <class Visitor>
  void step(Visitor&& visitor);
  void step() { step(StepVisitor()); }

  /// The program refers to it. Never of leaves that no operator made: they are there whoever does.
  [[nodiscard]] bool alive(ValueId v) const { return has(v, kAlive); }
  /// A backward node has unpacked it and is not done. One that saved a value twice is done with both at once.
  [[nodiscard]] bool unpacked(ValueId v) const { return has(v, kUnpacked); }
  /// An operator has written over it.
  [[nodiscard]] bool overwritten(ValueId v) const { return has(v, kOverwritten); }
  /// Operators that have run or run now: those before this one.
  [[nodiscard]] OpId ops() const noexcept { return ops_; }
  /// The forward pass is over.
  [[nodiscard]] bool settled() const noexcept { return settled_; }
  /// Memory that is no value's: what was there before the step, and what other allocations and operators left.
  [[nodiscard]] Bytes unowned() const noexcept { return unowned_; }

 private:
  enum : std::uint8_t { kAlive = 1, kUnpacked = 2, kOverwritten = 4 };
  [[nodiscard]] bool has(ValueId v, std::uint8_t flag) const { return (flags_[at(v)] & flag) != 0; }
  void set(ValueId v, std::uint8_t flag) { flags_[at(v)] |= flag; }
  void clear(ValueId v, std::uint8_t flag) { flags_[at(v)] &= static_cast<std::uint8_t>(~flag); }

  const StepGraph* graph_;
  const Event* next_;
  const Event* end_;
  std::vector<std::uint8_t> flags_;  // by ValueId
  OpId ops_ = 0;
  bool settled_ = false;
  Bytes unowned_;
};

/// When things happen to a value: positions in StepGraph::events, or kNever.
struct Lifetime {
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);
  std::size_t dies = kNever;         ///< the program lets go of it
  std::size_t last_unpack = kNever;  ///< a backward node asks for it for the last time
};

/// By ValueId.
std::vector<Lifetime> lifetimes(const StepGraph& graph);

template <class Visitor>
void StepWalk::step(Visitor&& visitor) {
  const Event& e = *next_;
  switch (e.kind) {
    case Event::Kind::Run: {
      ops_ = std::max(ops_, e.id + 1);
      const auto outputs = graph_->flow.outputs(e.id);
      for (const Output& out : outputs) {
        if (out.overwrites != kNoValue) set(out.overwrites, kOverwritten);
        set(out.value, kAlive);
      }
      visitor.run(e.id);
      for (const Output& out : outputs) {
        if (out.overwrites != kNoValue) clear(out.overwrites, kAlive);
      }
      unowned_ += graph_->ops[at(e.id)].other_bytes;
      break;
    }
    case Event::Kind::Die:
      visitor.die(e.id);
      clear(e.id, kAlive);
      break;
    case Event::Kind::Save:
      visitor.save(e.id);
      break;
    case Event::Kind::Settle:
      visitor.settle();
      settled_ = true;
      break;
    case Event::Kind::Unpack:
      set(e.id, kUnpacked);
      visitor.unpack(e.id);
      break;
    case Event::Kind::Release:
      visitor.release(e.id);
      clear(e.id, kUnpacked);
      break;
    case Event::Kind::Other:
      visitor.other(e.peak, e.net);
      unowned_ += e.net;
      break;
  }
  ++next_;
}

}  // namespace snug::plan
