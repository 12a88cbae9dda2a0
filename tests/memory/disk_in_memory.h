#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/memory/block_file.h"
#include "snug/memory/tiers.h"

namespace snug::testing {

enum class Access : std::uint8_t { Write, Read };

/// A disk in memory, with what is to happen at each access: `contents` of a read are as they came from it. Any thread.
class DiskInMemory final : public memory::BlockFile {
 public:
  using AtAccess = std::function<void(Access access, std::span<std::byte> contents)>;
  explicit DiskInMemory(AtAccess at_access = {}) : at_access_(std::move(at_access)) {}

  void write(Bytes offset, std::span<const std::byte> contents) override {
    const std::lock_guard lock(mutex_);
    ++accesses;
    if (at_access_) at_access_(Access::Write, {});
    const auto end = static_cast<std::size_t>(offset) + contents.size();
    if (bytes_.size() < end) bytes_.resize(end);
    std::ranges::copy(contents, bytes_.begin() + offset);
  }
  void read(Bytes offset, std::span<std::byte> contents) override {
    const std::lock_guard lock(mutex_);
    ++accesses;
    std::memcpy(contents.data(), bytes_.data() + offset, contents.size());
    if (at_access_) at_access_(Access::Read, contents);
  }
  void cut_off(Bytes size) noexcept override {
    const std::lock_guard lock(mutex_);
    bytes_.resize(std::min(bytes_.size(), static_cast<std::size_t>(size)));
  }
  [[nodiscard]] std::string where() const override { return "a test"; }

  int accesses = 0;

 private:
  std::mutex mutex_;
  AtAccess at_access_;
  std::vector<std::byte> bytes_;
};

/// Whose disk it is.
inline std::shared_ptr<memory::Tiers> tiers_on(DiskInMemory::AtAccess at_access) {
  return std::make_shared<memory::Tiers>(
      memory::TierBudgets{}, [at_access = std::move(at_access)] { return std::make_unique<DiskInMemory>(at_access); });
}

[[noreturn]] inline void fail_with(int error) { throw std::system_error(error, std::generic_category()); }

}  // namespace snug::testing
