#include "snug/plan/run/scheduler.h"

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include "snug/plan/run/ledger.h"

namespace snug::plan {

/// One schedule: from the operator that makes the target back to what is at hand, and forward again.
class Scheduler::Search {
 public:
  Search(Scheduler& scratch, const Ledger& ledger, ValueId target)
      : flow_(scratch.flow_),
        ledger_(ledger),
        ops_(scratch.ops_),
        values_(scratch.values_),
        stack_(scratch.stack_),
        runs_(scratch.runs_),
        lists_(scratch.lists_),
        target_(target),
        segment_(flow_.scope(target)),
        first_(flow_.producer(target)),
        last_(first_) {
    ops_.begin(at(flow_.ops()));
    values_.begin(at(flow_.values()));
    runs_.clear();
    for (auto* list : {&lists_.drops, &lists_.copies, &lists_.read_later, &lists_.read_last, &lists_.sources})
      list->clear();
  }

  ReplaySchedule run() {
    find_path();
    add_what_waits();
    mark_what_stays();
    choose();
    return in_order();
  }

 private:
  // Of operators: the target depends on it; it is made along with it.
  enum : std::uint8_t { kPath = 1, kAlong = 2 };
  // Of values: a later step reads it; it outlives the replay; a step fetches it.
  enum : std::uint8_t { kRead = 1, kStays = 2, kFetched = 4 };

  bool chosen(OpId op) const { return ops_.get(at(op)) != 0; }
  bool marked(ValueId v, std::uint8_t mark) const { return (values_.get(at(v)) & mark) != 0; }
  bool made_here(ValueId v) const {
    const OpId producer = flow_.producer(v);
    return producer != kNoOp && producer <= last_ && chosen(producer);
  }
  /// It is there when the replay begins, or is fetched.
  bool is_source(ValueId v) const { return ledger_.resident(v) || (ledger_.fetchable(v) && !made_here(v)); }
  /// Segments that hold the target: what is made in them stays for its turn. Others are only passed through.
  bool encloses(SegmentId s) const { return s == segment_ || flow_.common_segment(s, segment_) == s; }

  /// What the target is made of is, so those of the same groups are.
  [[nodiscard]] bool its_leaves_are_there(OpId op) {
    const GroupId group = flow_.group(op);
    if (group < 0) return group == kAlwaysThere;
    if (groups_of_path_.empty()) {
      for (OpId other = first_; other <= last_; ++other) {
        if (ops_.get(at(other)) == kPath) groups_of_path_.insert(flow_.group(other));
      }
    }
    return groups_of_path_.contains(group);
  }

  /// The operators that the target depends on.
  void find_path() {
    stack_.assign(1, last_);
    ops_.set(at(last_), kPath);
    while (!stack_.empty()) {
      const OpId op = stack_.back();
      stack_.pop_back();
      first_ = std::min(first_, op);
      for (ValueId input : flow_.inputs(op)) {
        if (ledger_.at_hand(input)) continue;
        const OpId producer = flow_.producer(input);
        if (producer == kNoOp) throw std::logic_error("ledger: a leaf is absent and cannot be made again");
        if (chosen(producer)) continue;
        ops_.set(at(producer), kPath);
        stack_.push_back(producer);
      }
    }
  }

  /// What else is waited for and reads something that is computed here: now, or its inputs are computed twice.
  void add_what_waits() {
    for (OpId op = first_; op < last_; ++op) {
      if (chosen(op) || ledger_.demand(op) == 0 || !encloses(flow_.segment(op))) continue;
      // Whether something is computed here may be this process's affair, as after an eviction.
      if (flow_.runs_together(op) || !its_leaves_are_there(op)) continue;
      bool reads_ours = false;
      bool ready = true;
      for (ValueId input : flow_.inputs(op)) {
        if (made_here(input) && !ledger_.at_hand(input)) {
          reads_ours = true;
        } else {
          ready = ready && ledger_.at_hand(input);
        }
      }
      if (reads_ours && ready) ops_.set(at(op), kAlong);
    }
  }

  /// What those segments know of stays: values that saved tensors wait for, and inputs of a nested segment, so that it
  /// can be replayed on its own when its turn comes. And what is made together with other processes, once in a pass.
  void mark_what_stays() {
    for (OpId op = first_; op <= last_; ++op) {
      if (!chosen(op)) continue;
      const SegmentId here = flow_.segment(op);
      for (const Output& out : flow_.outputs(op)) {
        const bool waits = ledger_.waited_for(out.value) && encloses(flow_.scope(out.value));
        if (waits || flow_.runs_together(op)) values_.add(at(out.value), kStays);
      }
      if (ledger_.demand(op) == 0 || encloses(here)) continue;
      for (ValueId input : flow_.inputs(op)) {
        if (ledger_.at_hand(input)) continue;
        const SegmentId born = flow_.segment(flow_.producer(input));
        if (born != here && encloses(flow_.common_segment(born, here))) values_.add(at(input), kStays);
      }
    }
  }

  /// The operators, from the last, so that each knows who reads its results.
  void choose() {
    for (OpId op = last_; op >= first_; --op) {
      if (!chosen(op)) continue;
      // Made along: only what ends in a value that stays.
      if (ops_.get(at(op)) == kAlong &&
          std::ranges::none_of(flow_.outputs(op), [&](const Output& out) { return values_.get(at(out.value)) != 0; })) {
        ops_.set(at(op), 0);
        continue;
      }
      runs_.push_back(here(op));
      if (op == last_) lists_.read_later.push_back(target_);  // by the caller
      for (const Output& out : flow_.outputs(op)) {
        if (ledger_.resident(out.value)) continue;
        if (marked(out.value, kRead)) lists_.read_later.push_back(out.value);
        // Nobody reads it after its operator, and it is not to stay.
        if (values_.get(at(out.value)) == 0 && out.value != target_) lists_.drops.push_back(out.value);
      }
      for (ValueId input : flow_.inputs(op)) read(input);
      list_copies(op, std::span(lists_.drops).subspan(runs_.back().drops));
    }
  }

  /// Where the lists of the next operator begin, and those of the last one end.
  [[nodiscard]] Run here(OpId op) const {
    return {op, lists_.drops.size(), lists_.copies.size(), lists_.read_later.size(), lists_.read_last.size()};
  }

  void read(ValueId input) {
    if (is_source(input)) {
      lists_.sources.push_back(input);
      if (ledger_.resident(input) || marked(input, kFetched)) return;
      values_.add(at(input), kFetched);
      fetches_ = true;
      if (!ledger_.waited_for(input)) lists_.drops.push_back(input);
      return;
    }
    if (marked(input, kRead)) return;
    values_.add(at(input), kRead);
    lists_.read_last.push_back(input);
    if (!marked(input, kStays)) lists_.drops.push_back(input);
  }

  void list_copies(OpId op, std::span<const ValueId> drops) const {
    const auto inputs = flow_.inputs(op);
    for (const Output& out : flow_.outputs(op)) {
      if (out.overwrites == kNoValue || std::ranges::find(inputs, out.overwrites) == inputs.end()) continue;
      if (std::ranges::find(drops, out.overwrites) == drops.end()) lists_.copies.push_back(out.overwrites);
    }
  }

  /// As they were recorded. What is fetched comes late, as it takes memory.
  [[nodiscard]] ReplaySchedule in_order() {
    const auto values = std::make_shared_for_overwrite<ValueId[]>(lists_.drops.size() + lists_.copies.size() +
                                                                  lists_.read_later.size() + lists_.read_last.size() +
                                                                  lists_.sources.size());
    ValueId* end = values.get();
    const auto append = [&](const std::vector<ValueId>& list) {
      ValueId* const begin = std::exchange(end, std::ranges::copy(list, end).out);
      return std::span<const ValueId>(begin, end);
    };
    const auto drops = append(lists_.drops), copies = append(lists_.copies), read_later = append(lists_.read_later),
               read_last = append(lists_.read_last);
    ReplaySchedule replay{.steps = {}, .sources = append(lists_.sources), .values = values};
    replay.steps.reserve(runs_.size());
    for (std::size_t i = runs_.size(); i-- > 0;) {
      const Run& run = runs_[i];
      const Run next = i + 1 < runs_.size() ? runs_[i + 1] : here(kNoOp);
      const auto part = [&](std::span<const ValueId> all, std::size_t Run::*list) {
        return all.subspan(run.*list, next.*list - run.*list);
      };
      if (fetches_) place_fetches(run.op, replay);
      replay.steps.emplace_back(RunAgain{run.op, part(drops, &Run::drops), part(copies, &Run::copies),
                                         part(read_later, &Run::read_later), part(read_last, &Run::read_last)});
    }
    return replay;
  }

  void place_fetches(OpId op, ReplaySchedule& replay) {
    for (ValueId input : flow_.inputs(op)) {
      if (!marked(input, kFetched)) continue;
      values_.set(at(input), 0);
      replay.steps.emplace_back(Fetch{input});
    }
  }

  const Dataflow& flow_;
  const Ledger& ledger_;
  Marks& ops_;
  Marks& values_;
  std::vector<OpId>& stack_;
  std::vector<Run>& runs_;
  Lists& lists_;
  const ValueId target_;
  const SegmentId segment_;
  OpId first_;
  const OpId last_;
  std::set<GroupId> groups_of_path_;  // once they are asked for
  bool fetches_ = false;
};

ReplaySchedule Scheduler::schedule(const Ledger& ledger, ValueId target) {
  if (ledger.fetchable(target)) return {{Fetch{target}}, {}, {}};
  if (flow_.producer(target) == kNoOp) throw std::logic_error("ledger: a leaf is absent and cannot be made again");
  return Search(*this, ledger, target).run();
}

}  // namespace snug::plan
