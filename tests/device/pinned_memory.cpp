#include "tests/device/pinned_memory.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

namespace snug::testing {
namespace {

/// Blocks by address, of memory that is not the CPU allocator's: what is freed, and not yet filled, is overwritten.
class PinnedAllocator final : public at::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &PinnedAllocator::free, c10::Device(c10::kCPU)};
    void* const data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    TORCH_CHECK(data != nullptr, "simulated device: no pinned memory");
    std::memset(data, kOverwritten, bytes);
    const std::lock_guard lock(mutex_);
    blocks_.insert_or_assign(data, bytes);
    return {data, data, &PinnedAllocator::free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool has(const void* data) {
    const std::lock_guard lock(mutex_);
    auto after = blocks_.upper_bound(data);
    if (after == blocks_.begin()) return false;
    const auto& [start, block] = *std::prev(after);
    return std::less<>()(data, static_cast<const std::byte*>(start) + block);
  }

  static PinnedAllocator& instance() {
    static auto* const allocator = new PinnedAllocator;
    return *allocator;
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr int kOverwritten = 0xA5;
  static void free(void* data) {
    PinnedAllocator& allocator = instance();
    const std::lock_guard lock(allocator.mutex_);
    const auto block = allocator.blocks_.find(data);
    if (block == allocator.blocks_.end()) return;
    std::memset(data, kOverwritten, block->second);
    allocator.blocks_.erase(block);
    std::free(data);
  }

  std::mutex mutex_;
  std::map<const void*, std::size_t, std::less<>> blocks_;
};

}  // namespace

at::Allocator& pinned_allocator() { return PinnedAllocator::instance(); }
bool is_pinned(const void* data) { return PinnedAllocator::instance().has(data); }

}  // namespace snug::testing
