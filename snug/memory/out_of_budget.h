#pragma once

#include <c10/core/Device.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/errors.h"
#include "snug/memory/stats.h"

namespace snug {

/// An allocation would pass the limit and nothing was left to evict, or it is larger than all memory and swap. The
/// allocation did not happen; memory is as before, and the process can go on, with another budget or less work.
class OutOfBudget : public Error {
 public:
  struct Details {
    Bytes requested = 0;
    c10::Device device = c10::kCPU;
    std::string operation;  ///< the ATen operator that asked, empty when unknown
    memory::Stats stats;
    std::vector<std::pair<Bytes, memory::Tag>> largest;  ///< the largest live blocks, largest first
    std::optional<Bytes> machine{};                      ///< all its memory and swap, where it is known
    /// Whether somebody was asked to evict: a step ran under a session or was being recorded.
    bool in_step = true;
  };
  explicit OutOfBudget(Details details);
  [[nodiscard]] const Details& details() const noexcept { return details_; }

 private:
  Details details_;
};

namespace memory {

/// Of all blocks those that a message names: the largest, largest first.
std::vector<std::pair<Bytes, Tag>> largest_of(std::vector<std::pair<Bytes, Tag>> blocks);

/// What an allocator throws when it refuses: OutOfBudget, as LibTorch hands it through (see throw_into_libtorch).
[[noreturn]] void refuse(OutOfBudget::Details details);
/// The details of a refusal that comes out of LibTorch, translated or not, or nothing for other exceptions.
std::optional<OutOfBudget::Details> refusal_in(const std::exception_ptr& error);

/// Names the operator that this thread is running, for error messages. The string must outlive the scope.
class OperationScope {
 public:
  explicit OperationScope(const std::string* name) noexcept;
  ~OperationScope();
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  const std::string* previous_;
};

/// The name set by the innermost OperationScope of this thread, or an empty string.
std::string current_operation();

/// "weights 12.0 MiB, gradients ...": the tags that are not zero.
std::string describe(const ByTag& bytes);

}  // namespace memory
}  // namespace snug
