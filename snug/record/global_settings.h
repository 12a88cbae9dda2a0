#pragma once

#include <cstdint>

namespace snug::record {

/// The settings of at::globalContext(), which are the process's, that choose kernels and their precision: those of
/// torch.set_float32_matmul_precision and of fp32_precision in torch.backends, torch.use_deterministic_algorithms,
/// whether oneDNN, NNPACK and cuDNN are used, whether they are deterministic, cuDNN's benchmark mode, sums of reduced
/// precision in cuBLAS; and the default type of results.
///
/// Settings by which an operator is taken apart before it is recorded, as those of attention, are not among them.
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
  std::uint32_t bits_ = 0;
  Of of_ = Of::Elementwise;
};

/// Makes settings hold for the life of the scope, where they are others. Scopes nest. Where those of several threads
/// overlap, each thread's kernels may see the settings of the others; what held before the first holds after the last.
class GlobalSettingsScope {
 public:
  explicit GlobalSettingsScope(const GlobalSettings& settings)
      : before_(GlobalSettings::now(settings.of())), changes_(settings != before_) {
    if (changes_) begin(settings);
  }
  ~GlobalSettingsScope() {
    if (changes_) end();
  }
  GlobalSettingsScope(const GlobalSettingsScope&) = delete;
  GlobalSettingsScope& operator=(const GlobalSettingsScope&) = delete;

 private:
  static void begin(const GlobalSettings& settings);
  void end() const;

  GlobalSettings before_;
  bool changes_;
};

/// Puts all settings back at its end as they were when it was made, whatever came between.
class KeptSettings {
 public:
  KeptSettings() = default;
  ~KeptSettings();
  KeptSettings(const KeptSettings&) = delete;
  KeptSettings& operator=(const KeptSettings&) = delete;

 private:
  GlobalSettings cpu_ = GlobalSettings::now(GlobalSettings::Of::TheCpu);
  GlobalSettings accelerators_ = GlobalSettings::now(GlobalSettings::Of::Accelerators);
};

}  // namespace snug::record
