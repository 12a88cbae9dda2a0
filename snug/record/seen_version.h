#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>

namespace snug::record {

/// A tensor's version counter, and where it stood when somebody looked. Tensors without one (inference mode) never seem
/// to change.
class SeenVersion {
 public:
  SeenVersion() = default;
  explicit SeenVersion(const at::Tensor& tensor) : counter_(tensor.unsafeGetTensorImpl()->version_counter()) {
    look_again();
  }

  [[nodiscard]] std::uint32_t seen() const noexcept { return seen_; }
  [[nodiscard]] std::uint32_t now() const { return counter_.enabled() ? counter_.current_version() : seen_; }
  [[nodiscard]] bool raised() const { return now() != seen_; }
  void look_again() { seen_ = now(); }
  /// Looks again if the version rose by no more than `raises`.
  void settle(std::uint32_t raises) {
    if (now() - seen_ <= raises) look_again();
  }
  /// Whether nobody else has the counter: it cannot rise any more.
  [[nodiscard]] bool alone() const { return counter_.unique(); }
  /// Counts the writes of a new tensor as well: it shares this counter from then on, or, where there is none yet, this
  /// is its counter. No other code may have a reference to the tensor.
  void count_writes_of(const at::Tensor& tensor) {
    if (same_counter(SeenVersion())) {
      *this = SeenVersion(tensor);
    } else if (counter_.enabled()) {
      tensor.unsafeGetTensorImpl()->set_version_counter(counter_);
    }
  }
  /// Whether both count the same tensors' writes.
  [[nodiscard]] bool same_counter(const SeenVersion& other) const noexcept {
    // LibTorch has no comparison; a counter is one pointer.
    static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
    return std::memcmp(&counter_, &other.counter_, sizeof(counter_)) == 0;
  }

 private:
  c10::VariableVersion counter_;
  std::uint32_t seen_ = 0;
};

}  // namespace snug::record
