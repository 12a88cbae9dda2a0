#include "snug/record/global_settings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

namespace snug::record {
namespace {

using at::Context;
using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;

/// A field of GlobalSettings::bits_, whose lowest come first.
struct Setting {
  unsigned bits = 0;
  std::uint32_t (*get)(const Context&) = nullptr;
  void (*set)(Context&, std::uint32_t) = nullptr;
};

template <bool (Context::*Get)() const, void (Context::*Set)(bool)>
constexpr Setting flag() {
  return {1, [](const Context& c) { return (c.*Get)() ? 1U : 0U; },
          [](Context& c, std::uint32_t on) { (c.*Set)(on != 0); }};
}

template <at::CuBLASReductionOption (Context::*Get)() const, void (Context::*Set)(bool, bool)>
constexpr Setting reduction() {
  return {2, [](const Context& c) { return static_cast<std::uint32_t>((c.*Get)()); },
          [](Context& c, std::uint32_t to) {
            const auto option = static_cast<at::CuBLASReductionOption>(to);
            (c.*Set)(option == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
                     option != at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK);
          }};
}

Float32Precision precision_of(const Context& context, Float32Backend backend, Float32Op op) {
  const Float32Precision is = context.float32Precision(backend, op);
  return is == Float32Precision::NONE ? Float32Precision::IEEE : is;
}

/// By what it inherits, if that is it: a program that sets the precision of a whole backend next means this one, too.
void set_precision(Context& context, Float32Backend backend, Float32Op op, Float32Precision to) {
  context.setFloat32Precision(backend, op, Float32Precision::NONE);
  if (precision_of(context, backend, op) != to) context.setFloat32Precision(backend, op, to);
}

template <Float32Backend Backend, Float32Op Op>
constexpr Setting precision() {
  return {3, [](const Context& c) { return static_cast<std::uint32_t>(precision_of(c, Backend, Op)); },
          [](Context& c, std::uint32_t to) { set_precision(c, Backend, Op, static_cast<Float32Precision>(to)); }};
}

/// Of products, on both backends. setFloat32MatmulPrecision also sets the field that PyTorch compares with these.
constexpr Setting kProducts = {
    6,
    [](const Context& c) {
      return precision<Float32Backend::CUDA, Float32Op::MATMUL>().get(c) << 3U |
             precision<Float32Backend::MKLDNN, Float32Op::MATMUL>().get(c);
    },
    [](Context& c, std::uint32_t to) {
      const auto cuda = static_cast<Float32Precision>(to >> 3U), mkldnn = static_cast<Float32Precision>(to & 7U);
      const auto are = [&](Float32Precision a, Float32Precision b) { return cuda == a && mkldnn == b; };
      if (are(Float32Precision::IEEE, Float32Precision::IEEE)) c.setFloat32MatmulPrecision("highest");
      if (are(Float32Precision::TF32, Float32Precision::TF32)) c.setFloat32MatmulPrecision("high");
      if (are(Float32Precision::TF32, Float32Precision::BF16)) c.setFloat32MatmulPrecision("medium");
      set_precision(c, Float32Backend::CUDA, Float32Op::MATMUL, cuda);
      set_precision(c, Float32Backend::MKLDNN, Float32Op::MATMUL, mkldnn);
    }};

constexpr Setting kDeterministic = {
    2,
    [](const Context& c) {
      return (c.deterministicAlgorithms() ? 1U : 0U) | (c.deterministicAlgorithmsWarnOnly() ? 2U : 0U);
    },
    [](Context& c, std::uint32_t to) { c.setDeterministicAlgorithms((to & 1U) != 0, (to & 2U) != 0); }};

constexpr Setting kDefaultType = {
    8, [](const Context&) { return static_cast<std::uint32_t>(c10::get_default_dtype_as_scalartype()); },
    [](Context&, std::uint32_t to) {
      c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(to)));
    }};

constexpr Setting kOneDnn = flag<&Context::userEnabledMkldnn, &Context::setUserEnabledMkldnn>();

/// Of kernels of custom operators that compute attention: PyTorch's own is taken apart before it is recorded.
constexpr std::array kAttention = {
    flag<&Context::userEnabledMathSDP, &Context::setSDPUseMath>(),
    flag<&Context::userEnabledFlashSDP, &Context::setSDPUseFlash>(),
    flag<&Context::userEnabledMemEfficientSDP, &Context::setSDPUseMemEfficient>(),
    flag<&Context::userEnabledCuDNNSDP, &Context::setSDPUseCuDNN>(),
    flag<&Context::userEnabledOverrideableSDP, &Context::setSDPUseOverrideable>(),
};

constexpr std::array kElementwise = {kDefaultType, kDeterministic, kOneDnn};

constexpr std::array kOnCpuAlone = {
    kDefaultType,
    kDeterministic,
    kOneDnn,
    flag<&Context::userEnabledNNPACK, &Context::setUserEnabledNNPACK>(),
    flag<&Context::deterministicMkldnn, &Context::setDeterministicMkldnn>(),
    kProducts,
    precision<Float32Backend::MKLDNN, Float32Op::CONV>(),
    precision<Float32Backend::MKLDNN, Float32Op::RNN>(),
};

constexpr std::array kOnAcceleratorsAlone = {
    kDefaultType,
    kDeterministic,
    kProducts,
    precision<Float32Backend::CUDA, Float32Op::CONV>(),
    precision<Float32Backend::CUDA, Float32Op::RNN>(),
    flag<&Context::userEnabledCuDNN, &Context::setUserEnabledCuDNN>(),
    flag<&Context::deterministicCuDNN, &Context::setDeterministicCuDNN>(),
    flag<&Context::benchmarkCuDNN, &Context::setBenchmarkCuDNN>(),
    flag<&Context::allowFP16AccumulationCuBLAS, &Context::setAllowFP16AccumulationCuBLAS>(),
    reduction<&Context::allowFP16ReductionCuBLAS, &Context::setAllowFP16ReductionCuBLAS>(),
    reduction<&Context::allowBF16ReductionCuBLAS, &Context::setAllowBF16ReductionCuBLAS>(),
};

template <std::size_t N, std::size_t M>
constexpr std::array<Setting, N + M> both(const std::array<Setting, N>& a, const std::array<Setting, M>& b) {
  std::array<Setting, N + M> all{};
  std::ranges::copy(b, std::ranges::copy(a, all.begin()).out);
  return all;
}

constexpr std::array kOnCpu = both(kOnCpuAlone, kAttention);
constexpr std::array kOnAccelerators = both(kOnAcceleratorsAlone, kAttention);

template <std::size_t N>
std::uint64_t read(const std::array<Setting, N>& settings) {
  const Context& context = at::globalContext();
  std::uint64_t bits = 0;
  unsigned shift = 0;
  for (const Setting& setting : settings) {
    bits |= std::uint64_t{setting.get(context)} << shift;
    shift += setting.bits;
  }
  return bits;
}

template <std::size_t N>
void write(const std::array<Setting, N>& settings, std::uint64_t bits) {
  Context& context = at::globalContext();
  for (const Setting& setting : settings) {
    const auto to = static_cast<std::uint32_t>(bits & ((std::uint64_t{1} << setting.bits) - 1));
    if (setting.get(context) != to) setting.set(context, to);
    bits >>= setting.bits;
  }
}

}  // namespace

GlobalSettings GlobalSettings::now(Of kernel) {
  GlobalSettings settings;
  settings.of_ = kernel;
  switch (kernel) {
    case Of::Elementwise:
      settings.bits_ = read(kElementwise);
      break;
    case Of::TheCpu:
      settings.bits_ = read(kOnCpu);
      break;
    case Of::Accelerators:
      settings.bits_ = read(kOnAccelerators);
      break;
  }
  return settings;
}

void GlobalSettings::set() const {
  switch (of_) {
    case Of::Elementwise:
      return write(kElementwise, bits_);
    case Of::TheCpu:
      return write(kOnCpu, bits_);
    case Of::Accelerators:
      return write(kOnAccelerators, bits_);
  }
}

namespace {

thread_local int t_scopes = 0;

/// Of all threads.
struct Overlapping {
  std::mutex mutex;
  std::atomic<int> scopes = 0;  // written with the mutex held
  std::optional<KeptSettings> before_the_first;
};
Overlapping& overlapping() {
  static auto* it = new Overlapping;  // scopes of threads that outlive main()
  return *it;
}

}  // namespace

bool GlobalSettingsScope::any() noexcept { return overlapping().scopes.load(std::memory_order_acquire) > 0; }

void GlobalSettingsScope::begin(const GlobalSettings& settings) {
  Overlapping& all = overlapping();
  const std::lock_guard lock(all.mutex);
  if (all.scopes++ == 0) all.before_the_first.emplace();
  ++t_scopes;
  settings.set();
}

void GlobalSettingsScope::end() const {
  Overlapping& all = overlapping();
  const std::lock_guard lock(all.mutex);
  --t_scopes;
  if (--all.scopes == 0) {
    all.before_the_first.reset();
  } else if (t_scopes > 0) {
    before_.set();
  }
}

namespace {

/// In an order in which each inherits from those before it.
constexpr std::array<std::pair<Float32Backend, Float32Op>, 9> kPrecisions = {{
    {Float32Backend::GENERIC, Float32Op::ALL},
    {Float32Backend::CUDA, Float32Op::ALL},
    {Float32Backend::CUDA, Float32Op::MATMUL},
    {Float32Backend::CUDA, Float32Op::CONV},
    {Float32Backend::CUDA, Float32Op::RNN},
    {Float32Backend::MKLDNN, Float32Op::ALL},
    {Float32Backend::MKLDNN, Float32Op::MATMUL},
    {Float32Backend::MKLDNN, Float32Op::CONV},
    {Float32Backend::MKLDNN, Float32Op::RNN},
}};

}  // namespace

KeptSettings::KeptSettings() {
  std::ranges::transform(kPrecisions, precisions_.begin(), [](const auto& of) {
    return static_cast<std::uint8_t>(at::globalContext().float32Precision(of.first, of.second));
  });
}

void KeptSettings::put_back() const {
  for (const GlobalSettings& settings : {cpu_, accelerators_}) {
    if (GlobalSettings::now(settings.of()) != settings) settings.set();
  }
  Context& context = at::globalContext();
  for (std::size_t i = 0; i < kPrecisions.size(); ++i) {
    const auto [backend, op] = kPrecisions[i];
    const auto before = static_cast<Float32Precision>(precisions_[i]);
    const auto is_back = [&, backend = backend, op = op] { return context.float32Precision(backend, op) == before; };
    if (!is_back()) context.setFloat32Precision(backend, op, Float32Precision::NONE);
    if (!is_back()) context.setFloat32Precision(backend, op, before);
  }
}

}  // namespace snug::record
