#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/bound/minimum_cut.h"
#include "snug/plan/step/action.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// What holds at one moment of a step: during an event.
struct Moment {
  Moment(const StepGraph& graph, std::size_t event);

  OpId ops = 0;             ///< that ran before it or run in it
  std::vector<char> saved;  ///< by ValueId: backward asks for it later
  std::vector<char>
      free;  ///< it is there whatever a plan says: leaves, and what the program or a backward node refers to
  std::vector<char> lost;  ///< it was overwritten, and nothing has been replayed yet
  bool several = false;    ///< it stands for several moments: a replay may be over at the later ones
};

/// What a relaxed plan does.
struct RelaxedChoice {
  double seconds = 0;          ///< of the operators that run again, and of the values that are moved or compressed
  double weight = 0;           ///< of the values that are there, the free ones not, and of what is compressed
  std::vector<char> replayed;  ///< by OpId
  std::vector<Action> away;    ///< by ValueId: moved, compressed, or kKeep
};

/// How much a second counts of what a choice does.
struct SecondsCount {
  double replay = 1;              ///< of operators that run again
  double out = 1, in = 1;         ///< of copies that go on beside the step, and back
  double encode = 1, decode = 1;  ///< of compressing, of copies that the step waits for, and of the
                                  ///< processor's part of others, and back
};

/// The choice that every plan makes at one moment of a step, and nothing else of it: each value that backward asks for
/// later is there, as it is or in fewer bytes, or elsewhere and fetched, or its operator runs again, and then that
/// operator's inputs are there, and not as a lossy codec left them, or made again too. Each operator counts once,
/// however often a plan would run it. So the fewest seconds of a choice within some bytes are a lower bound for every
/// plan that has no more bytes at that moment; and choices are good plans themselves when memory is scarce at that
/// moment only. Values weigh their bytes, unless they are given other weights, and seconds count as they are, unless it
/// is told otherwise.
///
/// Weighing seconds and bytes against each other makes it a minimum cut (a closure problem, Picard 1976). The weights
/// that matter form the lower convex hull of seconds over bytes.
class Relaxation {
 public:
  /// `graph` must outlive this.
  Relaxation(const StepGraph& graph, Moment moment, SecondsCount count = {});

  /// By ValueId, not negative.
  void set_weights(std::vector<double> weights) { weights_ = std::move(weights); }

  /// The choice with the least seconds + price * weight, the one with the least weight at infinity.
  [[nodiscard]] RelaxedChoice best(double price) const;

  /// Vertices of the hull from all there to all made again, at most about `limit` of them, evenly spread in weight.
  [[nodiscard]] std::vector<RelaxedChoice> hull(std::size_t limit) const;

  /// No choice within `weight` takes fewer seconds than `seconds`, which is infinite when `weight` is negative.
  /// `choice` is one near to it.
  struct Bound {
    double seconds = 0;
    RelaxedChoice choice;
  };
  [[nodiscard]] Bound least_seconds(double weight) const;

  /// As best(infinity) where nothing can be moved: all that backward asks for runs again, down to what is free.
  [[nodiscard]] RelaxedChoice everything_again() const;

  /// What a choice does with each value, by ValueId: of those that are there, as far as they are needed, free ones
  /// included, kKeep; of what it has no need of, kRecompute.
  [[nodiscard]] std::vector<Action> actions(const RelaxedChoice& choice) const;

  [[nodiscard]] const Moment& moment() const noexcept { return moment_; }

 private:
  struct Priced {
    RelaxedChoice choice;
    double bound = 0;  ///< on seconds + price * weight, rounding included
  };
  [[nodiscard]] Priced solve(double price) const;
  [[nodiscard]] RelaxedChoice weighed(std::vector<char> replayed, double price) const;
  /// What a value that an operator does not make again takes for being had later: the cheapest at that price. Also of
  /// what backward has asked for already, as long as a replay may read it.
  struct Away {
    Action action = kKeep;
    double seconds = 0, weight = 0;
    [[nodiscard]] double cost(double price) const { return seconds + (weight > 0 ? price * weight : 0); }
  };
  void add_ways(ValueId v, const SecondsCount& count);
  /// Who has it then: what a lossy codec leaves is for backward alone.
  enum class For : std::uint8_t { BackwardAlone, ReplaysToo };
  [[nodiscard]] Away cheapest(std::size_t v, double price, For whom) const;
  /// One that backward asks for, and replays or not, as the others are replayed.
  [[nodiscard]] For for_whom(ValueId v, const std::vector<char>& replayed) const;
  [[nodiscard]] bool needed(ValueId v, const std::vector<char>& replayed) const;

  const StepGraph& graph_;
  Moment moment_;
  std::vector<double> weights_;
  std::vector<double> op_seconds_;  // by OpId, to run again
  struct Way {
    Action action = kMove;
    double seconds = 0;  // there and back
    double share = 0;    // of its weight that is left then
  };
  std::vector<Way> ways_;                   // for a value not to be there as it is
  std::vector<std::size_t> first_way_{0};   // by ValueId, and the end
  std::vector<std::vector<OpId>> readers_;  // by ValueId, of the operators below
  std::vector<char> relevant_;              // operators that some choice may run again
  double scale_ = 1;                        // capacities per second
};

}  // namespace snug::plan
