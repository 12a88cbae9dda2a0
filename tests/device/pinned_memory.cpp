#include "tests/device/pinned_memory.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>

namespace snug::testing {
namespace {

/// Blocks of the CPU's allocator, by address.
class PinnedAllocator final : public at::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr taken = c10::GetCPUAllocator()->allocate(bytes);
    void* const data = taken.get();
    if (data == nullptr) return taken;
    const std::lock_guard lock(mutex_);
    blocks_.insert_or_assign(data, Block{bytes, std::move(taken)});
    return {data, data, &PinnedAllocator::free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool has(const void* data) {
    const std::lock_guard lock(mutex_);
    auto after = blocks_.upper_bound(data);
    if (after == blocks_.begin()) return false;
    const auto& [start, block] = *std::prev(after);
    return std::less<>()(data, static_cast<const std::byte*>(start) + block.bytes);
  }

  static PinnedAllocator& instance() {
    static auto* const allocator = new PinnedAllocator;
    return *allocator;
  }

 private:
  struct Block {
    std::size_t bytes;
    c10::DataPtr memory;
  };
  static void free(void* data) {
    c10::DataPtr freed;
    PinnedAllocator& allocator = instance();
    const std::lock_guard lock(allocator.mutex_);
    const auto block = allocator.blocks_.find(data);
    if (block == allocator.blocks_.end()) return;
    freed = std::move(block->second.memory);
    allocator.blocks_.erase(block);
  }

  std::mutex mutex_;
  std::map<const void*, Block, std::less<>> blocks_;
};

}  // namespace

at::Allocator& pinned_allocator() { return PinnedAllocator::instance(); }
bool is_pinned(const void* data) { return PinnedAllocator::instance().has(data); }

}  // namespace snug::testing
