#pragma once

#include <cstdint>

namespace snug::record {

/// The settings of at::globalContext(), which are the process's, that choose kernels and their precision: those of
/// torch.set_float32_matmul_precision and of fp32_precision in torch.backends, torch.use_deterministic_algorithms,
/// whether oneDNN and cuDNN are used, whether they are deterministic, cuDNN's benchmark mode, and sums of reduced
/// precision in cuBLAS.
///
/// Settings by which an operator is taken apart before it is recorded, as those of attention, are not among them.
class GlobalSettings {
 public:
  /// Those that a kernel may depend on: an elementwise one computes no products; of convolutions and recurrent layers
  /// the precision on its device counts.
  enum class Of : std::uint8_t { Elementwise, TheCpu, Accelerators };

  /// Returns those that hold now. Costs about 0.1 microseconds, and a tenth of that for Elementwise.
  static GlobalSettings now(Of kernel);
  /// Makes them the process's. What was inherited, as a precision from that of a whole backend, is then set by itself.
  void set() const;

  Of of() const { return of_; }

  friend bool operator==(const GlobalSettings&, const GlobalSettings&) = default;

 private:
  std::uint32_t bits_ = 0;
  Of of_ = Of::Elementwise;
};

/// Makes settings the process's for the life of the scope, where they are others. Not synchronized with other threads.
class GlobalSettingsScope {
 public:
  explicit GlobalSettingsScope(const GlobalSettings& settings)
      : before_(GlobalSettings::now(settings.of())), changes_(settings != before_) {
    if (changes_) settings.set();
  }
  ~GlobalSettingsScope() {
    if (changes_) before_.set();
  }
  GlobalSettingsScope(const GlobalSettingsScope&) = delete;
  GlobalSettingsScope& operator=(const GlobalSettingsScope&) = delete;

 private:
  GlobalSettings before_;
  bool changes_;
};

}  // namespace snug::record
