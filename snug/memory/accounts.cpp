#include "snug/memory/accounts.h"

#include <algorithm>
#include <optional>

namespace snug::memory {
namespace {

std::size_t index(Tag tag) { return static_cast<std::size_t>(tag); }

}  // namespace

void Accounts::retag(Bytes size, Tag from, Tag to) {
  if (from == to) return;
  stats_.by_tag[index(from)] -= size;
  stats_.by_tag[index(to)] += size;
  stats_.peak_by_tag[index(to)] = std::max(stats_.peak_by_tag[index(to)], stats_.by_tag[index(to)]);
}

void Accounts::reset_peak(Bytes mapped) {
  stats_.allocated_peak = stats_.allocated;
  stats_.mapped_peak = mapped;
  stats_.peak_by_tag = stats_.at_peak_by_tag = stats_.by_tag;
}

class Accounts::HighWaterMeter final : public Meter {
 public:
  explicit HighWaterMeter(Accounts& accounts) : accounts_(accounts) {
    const std::lock_guard lock(accounts.mutex_);
    high_water_.emplace(accounts.stats_.allocated);
    accounts.meters_.push_back(&*high_water_);
  }
  ~HighWaterMeter() override {
    const std::lock_guard lock(accounts_.mutex_);
    std::erase(accounts_.meters_, &*high_water_);
  }
  HighWaterMeter(const HighWaterMeter&) = delete;
  HighWaterMeter& operator=(const HighWaterMeter&) = delete;

  Peak take() override {
    const std::lock_guard lock(accounts_.mutex_);
    return high_water_->take(accounts_.stats_.allocated);
  }
  void keep(Bytes bytes) override {
    const std::lock_guard lock(accounts_.mutex_);
    high_water_->change(bytes);
  }

 private:
  Accounts& accounts_;
  std::optional<HighWater> high_water_;
};

std::unique_ptr<Meter> Accounts::meter() { return std::make_unique<HighWaterMeter>(*this); }

}  // namespace snug::memory
