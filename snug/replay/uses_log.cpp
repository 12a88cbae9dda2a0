#include "snug/replay/uses_log.h"

#include <algorithm>
#include <utility>

namespace snug::replay {
namespace {

/// Of a step. Where none begins, as in evaluation and generation, nobody asks for what was used.
constexpr std::size_t kMostUses = 1 << 16;

}  // namespace

void UsesLog::note(const plan::StreamedUse& use) {
  if (!seen_.empty() && seen_.back().use.tensor == use.tensor) {
    seen_.back().use.does = std::max(seen_.back().use.does, use.does);
  } else if (seen_.size() < kMostUses) {
    seen_.push_back({use, clock_ != nullptr ? clock_->now() : 0});
  }
}

void UsesLog::forget(plan::StreamedId tensor) {
  std::erase_if(seen_, [&](const Seen& seen) { return seen.use.tensor == tensor; });
  for (auto& [kind, order] : orders_) {
    std::erase_if(order, [&](const plan::StreamedUse& use) { return use.tensor == tensor; });
  }
}

const std::vector<plan::StreamedUse>& UsesLog::next_step(StepKind kind) {
  if (!seen_.empty()) {
    std::vector<plan::StreamedUse>& order = orders_[kind_];
    order.clear();
    for (const Seen& seen : std::exchange(seen_, {})) order.push_back(seen.use);
  }
  kind_ = kind;
  return orders_[kind];
}

void UsesLog::measure(record::StepClock& clock) {
  clock_ = &clock;
  began_ = clock.now();
  seen_.clear();
  at_once_ = 0;
}

void UsesLog::forget_uses(std::size_t from) { seen_.resize(std::min(seen_.size(), from)); }

plan::StreamedStep UsesLog::measured(StepKind kind, double seconds, std::vector<Bytes> places) {
  record::StepClock& clock = *std::exchange(clock_, nullptr);
  plan::StreamedStep step{.places = std::move(places), .uses = {}, .seconds = seconds, .at_once = at_once_};
  for (const Seen& seen : seen_) step.uses.push_back({seen.use, std::min(seconds, clock.seconds(began_, seen.at))});
  kind_ = kind;
  (void)next_step(kind);
  return step;
}

}  // namespace snug::replay
