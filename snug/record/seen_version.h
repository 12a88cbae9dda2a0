#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>

namespace snug::record {

class SeenVersion;

/// A version counter for look-ups, which refers to that of a tensor or of a SeenVersion: those must outlive it.
class VersionNow {
 public:
  explicit VersionNow(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()),
        seen_(counter_.enabled() ? counter_.current_version() : 0) {}
  VersionNow(const SeenVersion& seen);  // NOLINT(google-explicit-constructor): look-ups take both

  [[nodiscard]] std::uint32_t seen() const noexcept { return seen_; }

 private:
  friend class SeenVersion;
  const c10::VariableVersion& counter_;
  std::uint32_t seen_;
};

/// A tensor's version counter, and where it stood when somebody looked. Tensors without one (inference mode) never seem
/// to change.
class SeenVersion {
 public:
  SeenVersion() = default;
  explicit SeenVersion(const at::Tensor& tensor) : SeenVersion(VersionNow(tensor)) {}
  explicit SeenVersion(const VersionNow& now) : counter_(now.counter_), seen_(now.seen_) {}

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
  [[nodiscard]] bool same_counter(const VersionNow& other) const noexcept {
    // LibTorch has no comparison; a counter is one pointer.
    static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
    return std::memcmp(&counter_, &other.counter_, sizeof(counter_)) == 0;
  }

 private:
  friend class VersionNow;
  c10::VariableVersion counter_;
  std::uint32_t seen_ = 0;
};

inline VersionNow::VersionNow(const SeenVersion& seen) : counter_(seen.counter_), seen_(seen.seen_) {}

}  // namespace snug::record
