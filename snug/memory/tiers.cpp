#include "snug/memory/tiers.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/process_memory.h"

namespace snug::memory {

namespace {

/// Of the machine's memory, and of the file system of TMPDIR.
void check_there_is_so_much(const TierBudgets& budgets) {
  const auto check = [](std::string_view what, std::optional<Bytes> budget, Bytes total, const std::string& owner) {
    if (!budget || total <= 0 || *budget <= total) return;
    throw UsageError(fmt::format("{} budget: {} is more than the {} that {} has; give less", what,
                                 format_bytes(*budget), format_bytes(total), owner));
  };
  if (budgets.host) check("host", budgets.host, machine_memory().total, "this machine");
  if (!budgets.disk) return;
  std::error_code none;  // of a folder that is not there the file tells
  const std::string folder = folder_of_unnamed_files();
  if (is_in_memory(folder)) {
    throw UsageError(fmt::format(
        "disk budget: {} is in memory (a tmpfs), and what moves there saves none; set TMPDIR to a folder on a disk",
        folder));
  }
  const auto space = std::filesystem::space(folder, none);
  if (!none) check("disk", budgets.disk, static_cast<Bytes>(space.capacity), "the disk of " + folder);
}

}  // namespace

Tiers::Tiers(TierBudgets budgets, std::function<std::unique_ptr<BlockFile>()> make_file)
    : budgets_(budgets), make_file_(std::move(make_file)), host_budget_(std::make_shared<HostBudget>(budgets.host)) {
  for (const auto& [what, budget] : {std::pair("host", budgets.host), std::pair("disk", budgets.disk)}) {
    if (budget && *budget <= 0)
      throw UsageError(fmt::format(
          "{} budget: {} bytes; give more, or leave it out, so that nothing goes there by a plan", what, *budget));
  }
  check_there_is_so_much(budgets_);
}

HostPool& Tiers::host(c10::DeviceType contents_of) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<HostPool>& pool = hosts_[contents_of];
  if (!pool) pool = std::make_unique<HostPool>(contents_of, host_budget_);
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
  return host_budget_->stats();
}

}  // namespace snug::memory
