#include "snug/described/address_supply.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>

namespace snug::described {
namespace {

constexpr Bytes kGranule = 512;  // as CUDA's

/// Whoever takes from a supply gives to it.
void nobody_frees(void* /*data*/) {}

}  // namespace

void AddressSupply::become(Bytes capacity, std::string model) {
  const std::lock_guard lock(mutex_);
  capacity_ = capacity;
  model_ = std::move(model);
}

c10::DataPtr AddressSupply::take(std::size_t bytes) {
  const Bytes block = std::max(rounded(static_cast<Bytes>(bytes)), kGranule);
  const std::lock_guard lock(mutex_);
  const Bytes most = std::min(capacity_, limit_.value_or(capacity_));
  TORCH_CHECK_WITH(OutOfMemoryError, lifted_ > 0 || reserved_ + block <= most, model_, ": ", format_bytes(block),
                   " are asked for while ", format_bytes(reserved_), " of ", format_bytes(most), " are taken");
  void* const data =
      ::mmap(nullptr, static_cast<std::size_t>(block), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK_WITH(OutOfMemoryError, data != MAP_FAILED, model_, ": no addresses are left for ", block, " bytes");
  blocks_.emplace(data, block);
  reserved_ += block;
  return {data, data, &nobody_frees, device_};
}

void AddressSupply::give(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(data);
  if (block == blocks_.end()) return;
  reserved_ -= block->second;
  ::munmap(data, static_cast<std::size_t>(block->second));
  blocks_.erase(block);
}

Bytes AddressSupply::rounded(Bytes bytes) const { return (bytes + kGranule - 1) / kGranule * kGranule; }

void AddressSupply::limit_reserved(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
}

memory::MachineMemory AddressSupply::capacity() const {
  const std::lock_guard lock(mutex_);
  return {capacity_, std::max<Bytes>(capacity_ - reserved_, 0)};
}

std::string AddressSupply::model() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

bool AddressSupply::has_given(const c10::DataPtr& data) const { return data.get_deleter() == &nobody_frees; }

}  // namespace snug::described
