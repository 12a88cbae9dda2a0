#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "snug/plan/step/ids.h"
#include "snug/record/seen_version.h"

namespace snug::record {

/// How often a counter of a value's writes is raised by an operator that the tape sees.
struct CountedRaise {
  plan::ValueId value = plan::kNoValue;
  SeenVersion counter;
  std::uint32_t raises = 0;
};

/// Adds one to the raises of that counter.
void count_raise(std::vector<CountedRaise>& all, plan::ValueId value, const SeenVersion& counter);

/// By what LibTorch's version counters something unseen is found to have written a value: a main counter for each, that
/// of the tensor that wrote it, and others of the same storage, as `.data` and _unsafe_view make them. What a recorded
/// operator writes raises them too, after its kernel: that is expected, and settled when the next one arrives. Not
/// synchronized.
class VersionTracker {
 public:
  VersionTracker();

  /// The value's main counter.
  void set(plan::ValueId value, SeenVersion version) {
    if (plan::at(value) == main_.size()) return main_.push_back(std::move(version));  // as values come
    if (plan::at(value) > main_.size()) main_.resize(plan::at(value) + 1);
    main_[plan::at(value)] = std::move(version);
  }
  /// Another one; what counted its writes so far goes on counting them.
  void replace(plan::ValueId value, const SeenVersion& version);
  [[nodiscard]] const SeenVersion& of(plan::ValueId value) const { return main_[plan::at(value)]; }

  /// Whether any of its counters rose since it was looked at.
  [[nodiscard]] bool raised(plan::ValueId value) const {
    return main_[plan::at(value)].raised() || (!others_.empty() && other_raised(value));
  }
  /// The counter among the value's; null when the tape has not met it there.
  [[nodiscard]] SeenVersion* find(plan::ValueId value, const VersionNow& counter) {
    SeenVersion& main = main_[plan::at(value)];
    return main.same_counter(counter) ? &main : find_other(value, counter);
  }
  /// One that is new to the tape counts the value's writes, too.
  void add(plan::ValueId value, const SeenVersion& counter);
  /// `value` has taken the place of `before` in a storage: whatever counted that one's writes counts its own.
  void inherit(plan::ValueId value, plan::ValueId before);
  /// Whatever has been counted so far was no write.
  void look_again(plan::ValueId value);

  /// `value` has just been written through a tensor with the counter `before` its kernel ran, which will rise once more
  /// on the way out of LibTorch's dispatcher, unless it has inside of the kernel.
  void expect(plan::ValueId value, const SeenVersion& before);
  /// What was expected has come.
  void settle();
  /// An operator raised these before the tape saw it.
  void excuse(std::span<const CountedRaise> raised);

 private:
  [[nodiscard]] bool other_raised(plan::ValueId value) const;
  SeenVersion* find_other(plan::ValueId value, const VersionNow& counter);

  struct Expected {
    plan::ValueId value;
    SeenVersion counter;   // as it stood before the kernel
    std::uint32_t inside;  // raises by operators that the kernel called
    std::uint32_t raises;
  };
  std::vector<SeenVersion> main_;    // by ValueId
  std::vector<Expected> unsettled_;  // of what was just written
  // Few values have any.
  ska::flat_hash_map<plan::ValueId, std::vector<SeenVersion>> others_;
};

}  // namespace snug::record
