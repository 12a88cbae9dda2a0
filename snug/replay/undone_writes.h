#pragma once

#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

#include "snug/memory/offloaded.h"
#include "snug/record/recording.h"

namespace snug::replay {

/// While the scope lives, what this thread's operators are about to write is copied first, a storage once, out of the
/// device's memory (see memory::Offloaded): no limit counts it. It is written back at the end, so that storages that
/// were there before have the same bits then. What was made inside of the scope is left alone, and so is what is gone
/// by then, or freed. Operators say what they write in their schemas, or in record::OperatorTraits; code that announces
/// what it writes is heard, too (record::Unrecorded); kernels that write without saying so are not noticed. Throws
/// Error out of an operator whose arguments cannot be copied; it does not run. One thread.
class UndoneWrites {
 public:
  /// `copied`, if any, is told how many seconds each copy took.
  explicit UndoneWrites(std::function<void(double seconds)> copied = nullptr);
  ~UndoneWrites();
  UndoneWrites(const UndoneWrites&) = delete;
  UndoneWrites& operator=(const UndoneWrites&) = delete;

  /// The tensor was made inside of the scope, by another thread's operators.
  void leave(const at::Tensor& made);
  /// Writes everything back now. Throws Error when a copy cannot be read; the others are written.
  void undo();

  /// Storages that have been copied and not written back.
  [[nodiscard]] std::size_t copied() const noexcept { return copies_.size(); }
  [[nodiscard]] Bytes copied_bytes() const noexcept;

 private:
  // Weak: what the program lets go of goes, and an address is not taken for another storage's.
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Copy {
    Weak storage;
    memory::Offloaded contents;
  };
  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void copy(const at::Tensor& written);

  std::function<void(double seconds)> told_;
  std::vector<Copy> copies_;
  std::unordered_set<const c10::StorageImpl*> copied_;
  ska::flat_hash_map<const c10::StorageImpl*, Weak> made_;
  std::vector<const c10::StorageImpl*> read_;  // by the operator that runs
  std::shared_ptr<memory::SpillFile> file_;
  record::OperatorGate gate_;
};

}  // namespace snug::replay
