#include "snug/record/global_settings.h"

#include <ATen/Context.h>

#include <array>
#include <string>

namespace snug::record {
namespace {

using at::Context;
using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;

/// A field of GlobalSettings::bits_, whose lowest come first.
struct Setting {
  unsigned bits;
  std::uint32_t (*get)(const Context&);
  void (*set)(Context&, std::uint32_t);
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

template <Float32Backend Backend, Float32Op Op>
constexpr Setting precision() {
  return {3,
          [](const Context& c) {
            const Float32Precision is = c.float32Precision(Backend, Op);
            return static_cast<std::uint32_t>(is == Float32Precision::NONE ? Float32Precision::IEEE : is);
          },
          [](Context& c, std::uint32_t to) { c.setFloat32Precision(Backend, Op, static_cast<Float32Precision>(to)); }};
}

/// Of products, on both backends. setFloat32MatmulPrecision also sets the field that PyTorch compares with these.
constexpr Setting kProducts = {6,
                               [](const Context& c) {
                                 return precision<Float32Backend::CUDA, Float32Op::MATMUL>().get(c) << 3U |
                                        precision<Float32Backend::MKLDNN, Float32Op::MATMUL>().get(c);
                               },
                               [](Context& c, std::uint32_t to) {
                                 const auto cuda = static_cast<Float32Precision>(to >> 3U),
                                            mkldnn = static_cast<Float32Precision>(to & 7U);
                                 if (cuda == Float32Precision::IEEE && mkldnn == Float32Precision::IEEE) {
                                   c.setFloat32MatmulPrecision("highest");
                                 } else if (cuda == Float32Precision::TF32 && mkldnn == Float32Precision::TF32) {
                                   c.setFloat32MatmulPrecision("high");
                                 } else if (cuda == Float32Precision::TF32 && mkldnn == Float32Precision::BF16) {
                                   c.setFloat32MatmulPrecision("medium");
                                 } else {
                                   c.setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, cuda);
                                   c.setFloat32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL, mkldnn);
                                 }
                               }};

constexpr Setting kDeterministic = {
    2,
    [](const Context& c) {
      return (c.deterministicAlgorithms() ? 1U : 0U) | (c.deterministicAlgorithmsWarnOnly() ? 2U : 0U);
    },
    [](Context& c, std::uint32_t to) { c.setDeterministicAlgorithms((to & 1U) != 0, (to & 2U) != 0); }};

constexpr Setting kOneDnn = flag<&Context::userEnabledMkldnn, &Context::setUserEnabledMkldnn>();

constexpr std::array kElementwise = {kDeterministic, kOneDnn};

constexpr std::array kOnCpu = {
    kDeterministic,
    kOneDnn,
    flag<&Context::deterministicMkldnn, &Context::setDeterministicMkldnn>(),
    kProducts,
    precision<Float32Backend::MKLDNN, Float32Op::CONV>(),
    precision<Float32Backend::MKLDNN, Float32Op::RNN>(),
};

constexpr std::array kOnAccelerators = {
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

template <std::size_t N>
std::uint32_t read(const std::array<Setting, N>& settings) {
  const Context& context = at::globalContext();
  std::uint32_t bits = 0;
  unsigned shift = 0;
  for (const Setting& setting : settings) {
    bits |= setting.get(context) << shift;
    shift += setting.bits;
  }
  return bits;
}

template <std::size_t N>
void write(const std::array<Setting, N>& settings, std::uint32_t bits) {
  Context& context = at::globalContext();
  for (const Setting& setting : settings) {
    const std::uint32_t to = bits & ((1U << setting.bits) - 1U);
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

}  // namespace snug::record
