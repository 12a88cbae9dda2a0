#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "snug/plan/run/replay_schedule.h"
#include "snug/plan/step/dataflow.h"

namespace snug::plan {

class Ledger;

/// Finds what to run so that an absent value is resident: see Ledger::schedule. Keeps its scratch memory from one
/// replay to the next.
class Scheduler {
 public:
  explicit Scheduler(const Dataflow& flow) : flow_(flow) {}

  ReplaySchedule schedule(const Ledger& ledger, ValueId target);

 private:
  /// Marks on operators or values that are all zero again at each begin().
  class Marks {
   public:
    void begin(std::size_t size) {
      if (marks_.size() < size) marks_.resize(size);
      if (++round_ >= kRounds) {
        std::ranges::fill(marks_, 0U);
        round_ = 1;
      }
    }
    [[nodiscard]] std::uint8_t get(std::size_t i) const {
      return marks_[i] >> 8 == round_ ? static_cast<std::uint8_t>(marks_[i]) : std::uint8_t{0};
    }
    void set(std::size_t i, std::uint8_t mark) { marks_[i] = round_ << 8 | mark; }
    void add(std::size_t i, std::uint8_t mark) { set(i, get(i) | mark); }

   private:
    static constexpr std::uint32_t kRounds = 1U << 24;
    std::vector<std::uint32_t> marks_;  // the round in which it was set, and the mark
    std::uint32_t round_ = 0;
  };
  class Search;
  /// An operator that runs, and where its values begin in each of the lists.
  struct Run {
    OpId op = kNoOp;
    std::size_t drops = 0, copies = 0, read_later = 0, read_last = 0;
  };
  struct Lists {
    std::vector<ValueId> drops, copies, read_later, read_last, sources;
  };

  const Dataflow& flow_;
  Marks ops_, values_;
  std::vector<OpId> stack_;
  std::vector<Run> runs_;  // from the last
  Lists lists_;
};

}  // namespace snug::plan
