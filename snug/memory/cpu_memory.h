#pragma once

#include <c10/core/Allocator.h>

#include <mutex>

#include "snug/memory/accounts.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/page_heap.h"
#include "snug/memory/pressure_handlers.h"
#include "snug/memory/small_heap.h"

namespace snug::memory {

struct BlockHeader;

/// The CPU's allocator. Byte-exact and deterministic: the same requests in the same order give the same figures. A
/// block is its bytes and a header of 64, rounded up to 64 bytes up to 4 KiB and to whole pages above; data is
/// aligned to 64 bytes as LibTorch's own. Freed blocks are cached and used again (see PageHeap), and mapped bytes,
/// cached ones included, never exceed the limit: resident memory follows the count.
class CpuMemory final : public c10::Allocator, public DeviceMemory {
 public:
  /// The process's allocator, made and installed on first use and never destroyed: tensors may outlive main().
  static CpuMemory& instance();

  // c10::Allocator
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  // DeviceMemory
  [[nodiscard]] Stats stats() const override;
  void reset_peak() override;
  void set_limit(std::optional<Bytes> limit) override;
  void release_cached() override;
  [[nodiscard]] MachineMemory capacity() const override { return machine_memory(); }
  [[nodiscard]] Bytes rounded(Bytes bytes) const override;
  [[nodiscard]] bool allocated_since(const c10::Storage& storage, AllocationTime time) const override;
  void retag(const c10::Storage& storage, Tag tag) override;
  void adopt(const c10::Storage& storage) override;
  void add_pressure_handler(PressureHandler* handler) override { handlers_.add(handler); }
  void remove_pressure_handler(PressureHandler* handler) override { handlers_.remove(handler); }
  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }
  [[nodiscard]] std::unique_ptr<Meter> meter() override { return accounts_.meter(); }

 private:
  CpuMemory() = default;
  static void deallocate(void* data);
  static void free_adopted(void* block);
  void limit_pages(std::optional<Bytes> limit);
  void lock_all();
  void unlock_all();
  void renew_locks();
  std::byte* try_take(Bytes block, bool small);
  void free_block(BlockHeader* header);
  /// How much must be freed so that `bytes` can be taken.
  Bytes shortage(Bytes bytes) const;
  [[nodiscard]] Bytes mapped() const { return pages_.mapped() + adopted_; }
  [[noreturn]] void refuse(Bytes bytes) const;

  mutable std::mutex mutex_;
  PageHeap pages_;
  SmallHeap small_{pages_};
  Accounts accounts_{mutex_};
  BlockHeader* newest_ = nullptr;  // all live blocks, linked
  std::optional<Bytes> limit_;
  Bytes adopted_ = 0;  // outside of the pages

  PressureHandlers handlers_;
};

}  // namespace snug::memory
