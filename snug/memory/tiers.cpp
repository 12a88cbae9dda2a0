#include "snug/memory/tiers.h"

#include <fmt/format.h>

#include <utility>

#include "snug/base/errors.h"

namespace snug::memory {

Tiers::Tiers(TierBudgets budgets, std::function<std::unique_ptr<BlockFile>()> make_file)
    : budgets_(budgets), make_file_(std::move(make_file)) {
  for (const auto& [what, budget] : {std::pair("host", budgets.host), std::pair("disk", budgets.disk)}) {
    if (budget && *budget <= 0)
      throw UsageError(fmt::format(
          "{} budget: {} bytes; give more, or leave it out, so that nothing goes there by a plan", what, *budget));
  }
}

HostPool& Tiers::host(c10::DeviceType contents_of) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<HostPool>& pool = hosts_[contents_of];
  if (!pool) pool = std::make_unique<HostPool>(contents_of, budgets_.host);
  return *pool;
}

SpillFile& Tiers::disk() {
  const std::lock_guard lock(mutex_);
  if (!disk_) disk_ = std::make_unique<SpillFile>(make_file_(), budgets_.disk);
  return *disk_;
}

HostPool& Tiers::passage(c10::DeviceType contents_of) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<HostPool>& pool = passages_[contents_of];
  if (!pool) pool = std::make_unique<HostPool>(contents_of);
  return *pool;
}

TierStats Tiers::stats(Tier tier) const {
  const std::lock_guard lock(mutex_);
  if (tier == Tier::Disk) return disk_ ? disk_->stats() : TierStats{.budget = budgets_.disk};
  TierStats all{.budget = budgets_.host};
  for (const auto& [type, pool] : hosts_) {
    const TierStats stats = pool->stats();
    all.taken += stats.taken;
    all.taken_peak += stats.taken_peak;
    all.held += stats.held;
  }
  return all;
}

}  // namespace snug::memory
