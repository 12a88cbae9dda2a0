// Counts every byte that a Python process's PyTorch allocates on the CPU, on top of whatever malloc it runs on. Loaded
// with ctypes by pytorch_method.py, so that PyTorch's own memory savers are counted as snug counts.
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace {

constexpr std::size_t kHeader = 64;

std::mutex mutex;
std::int64_t used = 0, peak = 0;

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* block = nullptr;
    if (posix_memalign(&block, kHeader, bytes + kHeader) != 0) throw std::bad_alloc();
    std::memcpy(block, &bytes, sizeof bytes);
    {
      const std::lock_guard lock(mutex);
      used += static_cast<std::int64_t>(bytes);
      peak = std::max(peak, used);
    }
    char* data = static_cast<char*>(block) + kHeader;
    return {data, data, &CountingAllocator::release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    char* block = static_cast<char*>(data) - kHeader;
    std::size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof bytes);
    {
      const std::lock_guard lock(mutex);
      used -= static_cast<std::int64_t>(bytes);
    }
    std::free(block);
  }
};

CountingAllocator allocator;

}  // namespace

extern "C" {
void count_allocations() { c10::SetCPUAllocator(&allocator, /*priority=*/255); }
std::int64_t bytes_used() {
  const std::lock_guard lock(mutex);
  return used;
}
std::int64_t bytes_peak() {
  const std::lock_guard lock(mutex);
  return peak;
}
void reset_peak() {
  const std::lock_guard lock(mutex);
  peak = used;
}
}
