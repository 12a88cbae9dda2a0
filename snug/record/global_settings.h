#pragma once

#include <array>
#include <cstdint>

namespace snug::record {

/// The settings of at::globalContext(), which are the process's, that choose kernels and their precision: those of
/// torch.set_float32_matmul_precision and of fp32_precision in torch.backends, torch.use_deterministic_algorithms,
/// whether oneDNN, NNPACK and cuDNN are used, whether they are deterministic, cuDNN's benchmark mode, sums of reduced
/// precision in cuBLAS; those of torch.nn.attention.sdpa_kernel; and the default type of results.
class GlobalSettings {
 public:
  /// Those that a kernel may depend on: an elementwise one computes no products; of convolutions and recurrent layers
  /// the precision on its device counts.
  enum class Of : std::uint8_t { Elementwise, TheCpu, Accelerators };

  /// Returns those that hold now. Costs about 0.1 microseconds, and a tenth of that for Elementwise.
  static GlobalSettings now(Of kernel);
  /// Makes them hold. A precision that is the same as that of its backend is inherited from there afterwards, as it
  /// cannot be told whether it was set by itself.
  void set() const;

  Of of() const { return of_; }

  friend bool operator==(const GlobalSettings&, const GlobalSettings&) = default;

 private:
  std::uint64_t bits_ = 0;
  Of of_ = Of::Elementwise;
};

/// Makes settings hold for the life of the scope. Scopes nest. What held before the first of all threads' scopes holds
/// after the last of them; where two that overlap need different settings, a kernel may see those of the other thread.
class GlobalSettingsScope {
 public:
  explicit GlobalSettingsScope(const GlobalSettings& settings)
      : before_(GlobalSettings::now(settings.of())), counts_(settings != before_ || any()) {
    if (counts_) begin(settings);
  }
  ~GlobalSettingsScope() {
    if (counts_) end();
  }
  GlobalSettingsScope(const GlobalSettingsScope&) = delete;
  GlobalSettingsScope& operator=(const GlobalSettingsScope&) = delete;

 private:
  /// Whether there are scopes of any thread at whose end settings change.
  static bool any() noexcept;
  static void begin(const GlobalSettings& settings);
  void end() const;

  GlobalSettings before_;
  bool counts_;
};

/// Restores, when destroyed, all settings that held when it was constructed. Also restores which precisions are
/// inherited from their backend, where that shows: one that is the same as its backend's may be inherited afterwards
/// where it was set by itself, and the other way round.
class KeptSettings {
 public:
  KeptSettings();
  ~KeptSettings() { put_back(); }
  KeptSettings(const KeptSettings&) = delete;
  KeptSettings& operator=(const KeptSettings&) = delete;

  /// The same before its end.
  void put_back() const;

 private:
  std::array<std::uint8_t, 9> precisions_{};  // at::Float32Precision of each that can be set
  GlobalSettings cpu_ = GlobalSettings::now(GlobalSettings::Of::TheCpu);
  GlobalSettings accelerators_ = GlobalSettings::now(GlobalSettings::Of::Accelerators);
};

}  // namespace snug::record
