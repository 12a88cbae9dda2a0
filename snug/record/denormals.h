#pragma once

#include <cstdint>

namespace snug::record {

/// What a thread's CPU does with denormal numbers: torch.set_flush_denormal(True) has it take them for zero.
enum class Denormals : std::uint8_t { Kept, Flushed };

/// That of the calling thread. Kept on processors that cannot do otherwise.
Denormals denormals() noexcept;

/// Sets that for the life of the scope, which begins and ends on one thread.
class DenormalScope {
 public:
  explicit DenormalScope(Denormals become) {
    if (become != before_) set(become);
  }
  /// Leaves it as it is, and puts it back at the end.
  DenormalScope() = default;
  ~DenormalScope() {
    if (denormals() != before_) set(before_);
  }
  DenormalScope(const DenormalScope&) = delete;
  DenormalScope& operator=(const DenormalScope&) = delete;

 private:
  static void set(Denormals become) noexcept;

  Denormals before_ = denormals();
};

}  // namespace snug::record
