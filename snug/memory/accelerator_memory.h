#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "snug/memory/accounts.h"
#include "snug/memory/arena.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/pressure_handlers.h"

namespace snug::memory {

/// What hands out the memory of one accelerator, as LibTorch's caching allocators do: blocks of segments that it keeps
/// when they are free, in the order of streams. Any thread.
class Supply {
 public:
  virtual ~Supply() = default;
  /// At least one byte, for the calling thread's current stream. Throws c10::OutOfMemoryError when there is none.
  virtual c10::DataPtr take(std::size_t bytes) = 0;
  /// Frees what take() has returned, at this address. Must not throw.
  virtual void give(void* data) noexcept = 0;
  /// The bytes of the block that take(bytes) returns.
  [[nodiscard]] virtual Bytes rounded(Bytes bytes) const = 0;
  /// Of the device's memory, used or kept.
  [[nodiscard]] virtual Bytes reserved() const = 0;
  /// No more is reserved from now on.
  virtual void limit_reserved(std::optional<Bytes> limit) = 0;
  /// Gives back what is kept.
  virtual void release_cached() = 0;
  [[nodiscard]] virtual MachineMemory capacity() const = 0;
  /// See DeviceMemory::model().
  [[nodiscard]] virtual std::string model() const { return {}; }
  /// See DeviceMemory::own_seconds().
  [[nodiscard]] virtual std::optional<double> own_seconds() const { return {}; }
  /// Whether all that the calling thread takes must be of this supply's own making at the moment, as where a graph is
  /// captured, whose memory nobody else may use.
  [[nodiscard]] virtual bool must_serve() const { return false; }
  /// From where the stream is now on nobody reads these bytes of a block, which is another's to divide.
  virtual void emptied(void* data, Bytes bytes, c10::Stream stream) {
    static_cast<void>(data);
    static_cast<void>(bytes);
    static_cast<void>(stream);
  }
  /// Whether take() has returned it, to whoever.
  [[nodiscard]] virtual bool has_given(const c10::DataPtr& data) const = 0;
};

/// The memory of an accelerator. Counts each block of its supply as the supply rounds it, by tag, and refuses what
/// would pass the limit, once handlers have been asked; they are asked on the thread that allocates, outside of the
/// supply's locks. What the supply reserves stays within the limit too: where free blocks lie so that none is large
/// enough, it gives back what it keeps, and handlers are asked for the whole block.
class AcceleratorMemory final : public DeviceMemory {
 public:
  /// `free`: the deleter of what it hands out, which calls freed() with the context that it is given.
  AcceleratorMemory(c10::Device device, std::unique_ptr<Supply> supply, c10::DeleterFnPtr free);

  /// For the device's allocator in LibTorch. Throws OutOfBudget (see memory::refuse), and where there is neither a
  /// limit nor a handler what the supply throws, which libraries that try less memory know.
  c10::DataPtr allocate(std::size_t bytes);
  /// Returns what allocate() has handed out. False: this is none of its blocks, and nothing is done.
  bool freed(void* data) noexcept;
  /// What another stream does with a block ends before it is another's. False: that is the supply's to see to.
  bool record_stream(const void* data, c10::Stream stream);

  // DeviceMemory
  [[nodiscard]] c10::Device device() const override { return device_; }
  [[nodiscard]] std::string model() const override { return supply_->model(); }
  [[nodiscard]] std::optional<double> own_seconds() const override { return supply_->own_seconds(); }
  [[nodiscard]] Stats stats() const override;
  void reset_peak() override;
  void set_limit(std::optional<Bytes> limit) override;
  void release_cached() override { supply_->release_cached(); }
  [[nodiscard]] Bytes rounded(Bytes bytes) const override { return bytes == 0 ? 0 : supply_->rounded(bytes); }
  [[nodiscard]] bool allocated_since(const c10::Storage& storage, AllocationTime time) const override;
  void retag(const c10::Storage& storage, Tag tag) override;
  void adopt(const c10::Storage& storage) override;
  [[nodiscard]] MachineMemory capacity() const override { return supply_->capacity(); }
  void add_pressure_handler(PressureHandler* handler) override { handlers_.add(handler); }
  void remove_pressure_handler(PressureHandler* handler) override { handlers_.remove(handler); }
  [[nodiscard]] std::unique_ptr<Meter> meter() override { return accounts_.meter(); }
  [[nodiscard]] std::shared_ptr<Arena> make_arena() override { return std::make_shared<Arena>(device_, *supply_); }
  void use(const std::shared_ptr<Arena>& arena) override;

 private:
  struct Block {
    Bytes size;
    Tag tag;
    AllocationTime born;
    std::shared_ptr<Arena> arena;  // that it lies in
  };
  struct Taken {
    void* data;
    std::shared_ptr<Arena> arena;
  };

  [[nodiscard]] bool limited() const;
  /// How much is missing so that `bytes` stay within the limit; 0: nothing, and they are promised.
  Bytes promise(Bytes bytes);
  [[nodiscard]] std::shared_ptr<Arena> arena() const;
  Taken take(std::size_t bytes, const std::shared_ptr<Arena>& arena, Arena::Request& request);
  void hand_out(Taken taken, Bytes promised);
  void take_back_promise(Bytes bytes);
  [[noreturn]] void refuse(Bytes bytes) const;

  const c10::Device device_;
  const std::unique_ptr<Supply> supply_;
  const c10::DeleterFnPtr free_;
  std::mutex limit_mutex_;    // serializes set_limit()
  mutable std::mutex mutex_;  // nothing of the supply's is called under it
  Accounts accounts_{mutex_};
  std::unordered_map<const void*, Block> blocks_;
  std::optional<Bytes> limit_;
  Bytes promised_ = 0;          // to allocations that are under way
  std::weak_ptr<Arena> arena_;  // in use, as long as somebody has it or something lies there
  PressureHandlers handlers_;
};

}  // namespace snug::memory
