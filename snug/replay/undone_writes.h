#pragma once

#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <memory>
#include <unordered_set>
#include <vector>

#include "snug/memory/offloaded.h"
#include "snug/record/recording.h"

namespace snug::replay {

/// While the scope lives, what this thread's operators are about to write is copied out of the device's memory first
/// (see memory::Offloaded), and written back at its end: storages that were there before have the same bits then. What
/// was made inside of the scope is left alone. Operators say what they write in their schemas; kernels that write
/// without saying so are not noticed. Throws Error out of an operator whose arguments cannot be copied; it does not
/// run. One thread.
class UndoneWrites {
 public:
  UndoneWrites();
  ~UndoneWrites();
  UndoneWrites(const UndoneWrites&) = delete;
  UndoneWrites& operator=(const UndoneWrites&) = delete;

  /// Writes everything back now. Throws Error when a copy cannot be read; the others are written.
  void undo();

  /// Storages that have been copied and not written back.
  [[nodiscard]] std::size_t copied() const noexcept { return copies_.size(); }

 private:
  struct Copy {
    c10::Storage storage;
    memory::Offloaded contents;
  };
  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void copy(const at::Tensor& written);

  std::vector<Copy> copies_;
  std::unordered_set<const c10::StorageImpl*> copied_;
  // Weak, so that an address is not taken for another storage's.
  ska::flat_hash_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
  std::unordered_set<const c10::StorageImpl*> read_;  // by the operator that runs
  std::shared_ptr<memory::SpillFile> file_;
  record::OperatorGate gate_;
};

}  // namespace snug::replay
