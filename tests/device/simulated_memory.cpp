#include "tests/device/simulated_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

constexpr Bytes kGranule = 512;     // as CUDA's
constexpr int kOverwritten = 0xA5;  // a number that is neither small nor nan, in every type

/// Whoever takes from a supply gives to it.
void nobody_frees(void* /*data*/) {}

void overwrite(void* data, Bytes bytes) { std::memset(data, kOverwritten, static_cast<std::size_t>(bytes)); }

}  // namespace

Bytes SimulatedSupply::rounded(Bytes bytes) const { return (bytes + kGranule - 1) / kGranule * kGranule; }

bool SimulatedSupply::fails_now() {
  ++taken_;
  if (!failure_ || failure_->after-- > 0) return false;
  if (!failure_->for_good) failure_.reset();
  return true;
}

std::optional<SimulatedSupply::Free> SimulatedSupply::kept_block(Bytes bytes, c10::Stream stream) {
  const auto found = free_.find({stream.id(), bytes});
  if (found == free_.end()) return std::nullopt;
  Streams& streams = Streams::instance();
  const auto ready = std::ranges::find_if(found->second, [&](const Free& free) {
    return std::ranges::all_of(free.after, [&](const Ticket& ticket) { return streams.done(ticket); });
  });
  if (ready == found->second.end()) return std::nullopt;
  Free block = std::move(*ready);
  found->second.erase(ready);
  return block;
}

c10::DataPtr SimulatedSupply::take(std::size_t bytes) {
  const Bytes block = rounded(static_cast<Bytes>(bytes));
  const c10::Stream stream = current_simulated_stream(device_);
  std::unique_lock lock(mutex_);
  const bool fails = fails_now();
  const std::optional<Free> kept = fails ? std::nullopt : kept_block(block, stream);
  void* data = kept ? kept->data : nullptr;
  if (data == nullptr) {
    const Bytes most = std::min(capacity_, limit_.value_or(capacity_));
    TORCH_CHECK_WITH(OutOfMemoryError, !fails && reserved_ + block <= most, "simulated device: ", block, " bytes on ",
                     device_, " while ", reserved_, " of ", most, " are reserved");
    data = std::aligned_alloc(static_cast<std::size_t>(kGranule), static_cast<std::size_t>(block));
    reserved_ += block;
    overwrite(data, block);
  }
  blocks_.insert_or_assign(data, Block{block, stream, {}});
  lock.unlock();
  // What other streams have used was not overwritten when it was freed.
  if (kept && !kept->after.empty()) Streams::instance().put(stream, [data, block] { overwrite(data, block); });
  return {data, data, &nobody_frees, device_};
}

bool SimulatedSupply::has_given(const c10::DataPtr& data) const { return data.get_deleter() == &nobody_frees; }

void SimulatedSupply::give(void* data) noexcept {
  Bytes bytes = 0;
  std::vector<c10::Stream> used_by;
  std::optional<c10::Stream> own;
  {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    bytes = block->second.bytes;
    own = block->second.stream;
    used_by = std::move(block->second.used_by);
    blocks_.erase(block);
  }
  Streams& streams = Streams::instance();
  Free free{data, {}};
  for (const c10::Stream& stream : used_by) free.after.push_back(streams.last(stream));
  if (free.after.empty()) {
    streams.put(*own, [data, bytes] { overwrite(data, bytes); });
  }
  const std::lock_guard lock(mutex_);
  free_[{own->id(), bytes}].push_back(std::move(free));
}

void SimulatedSupply::emptied(void* data, Bytes bytes, c10::Stream stream) {
  Streams::instance().put(stream, [data, bytes] { overwrite(data, bytes); });
}

void SimulatedSupply::record_stream(const void* data, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(data);
  if (block == blocks_.end() || block->second.stream == stream) return;
  std::vector<c10::Stream>& used_by = block->second.used_by;
  if (std::ranges::find(used_by, stream) == used_by.end()) used_by.push_back(stream);
}

Bytes SimulatedSupply::reserved() const {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

void SimulatedSupply::limit_reserved(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
}

void SimulatedSupply::release_cached() {
  Streams::instance().wait_for_all();  // as cudaFree() does
  const std::lock_guard lock(mutex_);
  for (auto& [key, free] : free_) {
    for (const Free& block : free) std::free(block.data);
    reserved_ -= key.second * std::ssize(free);
  }
  free_.clear();
}

memory::MachineMemory SimulatedSupply::capacity() const {
  const std::lock_guard lock(mutex_);
  return {capacity_, capacity_ - reserved_};
}

void SimulatedSupply::set_capacity(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

void SimulatedSupply::fail(std::optional<Failure> failure) {
  const std::lock_guard lock(mutex_);
  failure_ = failure;
}

std::int64_t SimulatedSupply::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

}  // namespace snug::testing
