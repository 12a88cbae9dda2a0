#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "snug/base/bytes.h"
#include "snug/memory/host_pool.h"
#include "snug/memory/links.h"
#include "snug/memory/spill_file.h"

namespace snug::memory {

/// Where contents go that leave a device's memory.
enum class Tier : std::uint8_t {
  Host,  ///< memory of the host, outside of LibTorch's allocators and their limits
  Disk,  ///< a file in the folder that TMPDIR names
};

/// The most that may be in each; none: as much as there is.
struct TierBudgets {
  std::optional<Bytes> host{}, disk{};
  friend bool operator==(const TierBudgets&, const TierBudgets&) = default;
};

/// The tiers of whoever moves contents; each is made when something goes there first. Must outlive what is in them.
/// Any thread.
class Tiers {
 public:
  /// `make_file`: of the disk's contents. Throws UsageError for a budget that is not positive, or more than the machine
  /// has memory, or the file system of TMPDIR has room in all.
  explicit Tiers(TierBudgets budgets = {}, std::function<std::unique_ptr<BlockFile>()> make_file = &unnamed_file);

  /// Of page-locked memory for contents of an accelerator.
  HostPool& host(c10::DeviceType contents_of);
  SpillFile& disk();
  /// Page-locked memory by which contents of an accelerator come to the disk and back, outside of all budgets: as much
  /// as has been on its way at once.
  HostPool& passage(c10::DeviceType contents_of);
  /// By which contents come and go that nobody waits for.
  Links& links() noexcept { return links_; }

  /// The first place out of the device's memory: of an accelerator's the host, of the CPU's the disk; or the host,
  /// where it has a budget, as that is memory which the CPU's limit does not count.
  [[nodiscard]] Tier nearest(c10::Device device) const {
    return device.is_cpu() && !budgets_.host ? Tier::Disk : Tier::Host;
  }

  [[nodiscard]] const TierBudgets& budgets() const noexcept { return budgets_; }
  /// Nothing has gone there: zeros.
  [[nodiscard]] TierStats stats(Tier tier) const;

 private:
  const TierBudgets budgets_;
  const std::function<std::unique_ptr<BlockFile>()> make_file_;
  const std::shared_ptr<HostBudget> host_budget_;  // of all devices' contents together
  mutable std::mutex mutex_;
  std::map<c10::DeviceType, std::unique_ptr<HostPool>> hosts_, passages_;
  std::unique_ptr<SpillFile> disk_;
  Links links_;  // whose copies are over before the memory goes
};

}  // namespace snug::memory
