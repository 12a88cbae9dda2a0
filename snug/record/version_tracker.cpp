#include "snug/record/version_tracker.h"

#include <algorithm>
#include <utility>

namespace snug::record {

using plan::at;

void count_raise(std::vector<CountedRaise>& all, plan::ValueId value, const SeenVersion& counter) {
  const auto known = std::ranges::find_if(all, [&](const CountedRaise& r) { return r.counter.same_counter(counter); });
  if (known == all.end()) {
    all.push_back({value, counter, 1});
  } else {
    ++known->raises;
  }
}

VersionTracker::VersionTracker() {
  constexpr std::size_t kTypicalValues = 1024;
  main_.reserve(kTypicalValues);
}

void VersionTracker::replace(plan::ValueId value, const SeenVersion& version) {
  const SeenVersion before = std::exchange(main_[at(value)], version);
  if (!before.same_counter(version) && !before.same_counter(SeenVersion())) others_[value].push_back(before);
}

bool VersionTracker::other_raised(plan::ValueId value) const {
  const auto others = others_.find(value);
  return others != others_.end() && std::ranges::any_of(others->second, &SeenVersion::raised);
}

SeenVersion* VersionTracker::find_other(plan::ValueId value, const VersionNow& counter) {
  const auto others = others_.find(value);
  if (others == others_.end()) return nullptr;
  const auto found =
      std::ranges::find_if(others->second, [&](const SeenVersion& v) { return v.same_counter(counter); });
  return found == others->second.end() ? nullptr : &*found;
}

void VersionTracker::add(plan::ValueId value, const SeenVersion& counter) {
  auto& others = others_[value];
  std::erase_if(others, [](const SeenVersion& v) { return v.alone() && !v.raised(); });
  others.push_back(counter);
}

void VersionTracker::inherit(plan::ValueId value, plan::ValueId before) {
  const auto known = others_.find(before);
  std::vector<SeenVersion> all = known != others_.end() ? known->second : std::vector<SeenVersion>();
  all.push_back(main_[at(before)]);
  const SeenVersion& main = main_[at(value)];
  std::erase_if(
      all, [&](const SeenVersion& v) { return v.same_counter(main) || v.same_counter(SeenVersion()) || v.alone(); });
  if (all.empty()) return;
  for (SeenVersion& v : all) v.look_again();
  others_[value] = std::move(all);
}

void VersionTracker::look_again(plan::ValueId value) {
  main_[at(value)].look_again();
  const auto others = others_.find(value);
  if (others == others_.end()) return;
  for (SeenVersion& v : others->second) v.look_again();
}

void VersionTracker::expect(plan::ValueId value, const SeenVersion& before) {
  const auto known = std::ranges::find_if(
      unsettled_, [&](const Expected& e) { return e.value == value && e.counter.same_counter(before); });
  if (known == unsettled_.end()) {
    unsettled_.push_back({value, before, before.now() - before.seen(), 1});
  } else {
    ++known->raises;
  }
}

void VersionTracker::settle() {
  for (const Expected& e : unsettled_) {
    if (SeenVersion* version = find(e.value, e.counter)) version->settle(e.raises - std::min(e.raises, e.inside));
  }
  unsettled_.clear();
}

void VersionTracker::excuse(std::span<const CountedRaise> raised) {
  for (const CountedRaise& r : raised) {
    if (SeenVersion* version = find(r.value, r.counter)) {
      version->settle(r.raises);
    } else if (r.counter.seen() <= r.raises) {
      others_[r.value].push_back(r.counter);
    }
  }
}

}  // namespace snug::record
