#include "snug/described/device_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/lower_case.h"
#include "snug/base/quantity.h"

namespace snug::described {
namespace {

constexpr Bytes kContext = 512_MiB;
constexpr double kPcie3 = 16e9, kPcie4 = 32e9, kPcie5 = 64e9;  // 16 lanes, each way

constexpr std::array<std::pair<std::string_view, double>, 3> kFlops = {
    {{"GFLOPS", 1e9}, {"TFLOPS", 1e12}, {"PFLOPS", 1e15}}};

[[noreturn]] void refuse(std::string_view text) {
  std::string names;
  for (const DeviceDescription& one : known_devices()) names += (names.empty() ? "" : ", ") + one.name;
  throw UsageError(
      fmt::format("device: \"{}\" describes none; write one of {}, or what it can do, as in 312TFLOPS/2TBps/80GiB: "
                  "products of 16-bit numbers, bytes of its memory a second, and how much it has of that",
                  text, names));
}

}  // namespace

Bytes DeviceDescription::usable() const { return std::max<Bytes>(memory - kContext, 0); }

/// From the data sheets of NVIDIA, without sparsity, and the GeForce ones as products of fp16 are added up in fp32; the
/// memory as nvidia-smi has it.
const std::vector<DeviceDescription>& known_devices() {
  static const std::vector<DeviceDescription> all = {
      {"t4", 65e12, 8.1e12, 320e9, 15360_MiB, kPcie3},
      {"v100-32gb", 125e12, 15.7e12, 900e9, 32768_MiB, kPcie3},
      {"a100-40gb", 312e12, 19.5e12, 1555e9, 40960_MiB, kPcie4},
      {"a100-80gb", 312e12, 19.5e12, 2039e9, 81920_MiB, kPcie4},
      {"l4", 121e12, 30.3e12, 300e9, 23034_MiB, kPcie4},
      {"l40s", 362e12, 91.6e12, 864e9, 46068_MiB, kPcie4},
      {"rtx-3090", 71e12, 35.6e12, 936e9, 24576_MiB, kPcie4},
      {"rtx-4090", 165.2e12, 82.6e12, 1008e9, 24564_MiB, kPcie4},
      {"h100-sxm", 989.4e12, 66.9e12, 3350e9, 81559_MiB, kPcie5},
      {"h200", 989.4e12, 66.9e12, 4800e9, 143771_MiB, kPcie5},
      {"b200", 2250e12, 75e12, 7700e9, 183359_MiB, kPcie5},
  };
  return all;
}

DeviceDescription describe(std::string_view text) {
  const std::string lower = in_lower_case(text);
  for (const DeviceDescription& one : known_devices()) {
    if (one.name == lower) return one;
  }
  const std::size_t first = text.find('/'), second = text.rfind('/');
  if (first == second) refuse(text);
  const double flops = read_quantity(text.substr(0, first), kFlops).value_or(0);
  const double rate = read_rate(text.substr(first + 1, second - first - 1)).value_or(0);
  DeviceDescription own{.name = std::string(text),
                        .flops = flops,
                        .flops_of_fp32 = flops,
                        .bytes_per_second = rate,
                        .memory = 0,
                        .host_bytes_per_second = kPcie4};
  try {
    own.memory = parse_bytes(text.substr(second + 1));
  } catch (const UsageError&) {
    refuse(text);
  }
  if (flops <= 0 || rate <= 0 || own.usable() == 0) refuse(text);
  return own;
}

}  // namespace snug::described
