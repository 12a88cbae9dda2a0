#include "snug/record/memory_gauge.h"

#include <algorithm>
#include <utility>

namespace snug::record {

MemoryGauge::MemoryGauge(memory::DeviceMemory& memory, Bytes aside)
    : memory_(memory), meter_(memory.meter()), aside_(aside) {}

memory::Stats MemoryGauge::begin() {
  memory::Stats stats = memory_.stats();
  stats.allocated -= aside_;
  rebase();
  entered_ = level_;
  return stats;
}

void MemoryGauge::rebase() {
  level_ = memory_.stats().allocated;
  meter_->take();
  evicted_ = 0;
}

Bytes MemoryGauge::take_peak() { return std::max<Bytes>(meter_->take().all_at_once - level_, 0); }

Bytes MemoryGauge::grown() const { return memory_.stats().allocated - level_; }

MemoryGauge::Taken MemoryGauge::take_of_operator() {
  const Bytes peak = take_peak();
  const Bytes now = memory_.stats().allocated;
  const Bytes net = now - level_ + std::exchange(evicted_, 0);
  level_ = now;
  return {peak, net};
}

MemoryGauge::Taken MemoryGauge::take() {
  Taken taken = take_of_operator();
  taken.net += std::exchange(died_, 0);
  return taken;
}

void MemoryGauge::leave() {
  own_ += memory_.stats().allocated - entered_;
  died_ = 0;
  away_ = true;
}

void MemoryGauge::enter() {
  rebase();
  entered_ = level_;
  away_ = false;
}

void MemoryGauge::evicted_of_others(Bytes bytes) {
  const Bytes block = memory_.rounded(bytes);
  evicted_ += block;
  entered_ -= block;
}

void MemoryGauge::died_of_others(Bytes bytes) noexcept {
  died_ += bytes;
  entered_ -= bytes;
}

std::vector<MemoryGauge> gauges_of(const std::vector<memory::DeviceMemory*>& devices, const std::vector<Bytes>& aside) {
  std::vector<MemoryGauge> gauges;
  for (std::size_t i = 0; i < devices.size(); ++i) gauges.emplace_back(*devices[i], i < aside.size() ? aside[i] : 0);
  return gauges;
}

void MemoryGauge::evicted(Bytes bytes) {
  const Bytes block = memory_.rounded(bytes);
  if (away_) {
    own_ -= block;
    return;
  }
  meter_->keep(block);
  evicted_ += block;
}

}  // namespace snug::record
