#include "snug/described/device_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/lower_case.h"
#include "snug/base/nearest.h"
#include "snug/base/quantity.h"

namespace snug::described {
namespace {

constexpr Bytes kContext = 512_MiB;
constexpr double kPcie3 = 16e9, kPcie4 = 32e9, kPcie5 = 64e9;  // 16 lanes, each way

// Eight at a switch of NVLink, with a network adapter each: the DGX of each generation. GB200: a tray of NVL72.
constexpr DeviceDescription::Server kDgx1{8, 150e9, 50e9 / 8}, kDgxA100{8, 300e9, 200e9 / 8},
    kDgxH100{8, 450e9, 400e9 / 8}, kDgxB200{8, 900e9, 400e9 / 8}, kNvl72{4, 900e9, 400e9 / 8},
    kMi300xPlatform{8, 448e9, 400e9 / 8};

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kShortNames = {
    {{"h100", "h100-sxm"}, {"a100", "a100-80gb"}, {"v100", "v100-32gb"}}};

constexpr std::array<std::pair<std::string_view, double>, 3> kFlops = {
    {{"GFLOPS", 1e9}, {"TFLOPS", 1e12}, {"PFLOPS", 1e15}}};

[[noreturn]] void refuse(std::string_view text) {
  std::vector<std::string> names;
  for (const DeviceDescription& one : known_devices()) names.push_back(one.name);
  throw UsageError(
      fmt::format("device: \"{}\" describes none; {}write one of {}, or what it can do, as in 312TFLOPS/2TBps/80GiB: "
                  "products of 16-bit numbers, bytes of its memory a second, and how much it has of that",
                  text, did_you_mean(text, names), fmt::join(names, ", ")));
}

}  // namespace

Bytes DeviceDescription::usable() const { return std::max<Bytes>(memory - kContext, 0); }

/// From the data sheets of NVIDIA and AMD, without sparsity, and the GeForce ones as products of fp16 are added up in
/// fp32; the memory as nvidia-smi has it. AMD's MI300X as its data sheet has it, in units of 10^9 bytes.
const std::vector<DeviceDescription>& known_devices() {
  static const std::vector<DeviceDescription> all = {
      {"t4", 65e12, 8.1e12, 320e9, 15360_MiB, kPcie3, {}},
      {"v100-32gb", 125e12, 15.7e12, 900e9, 32768_MiB, kPcie3, kDgx1},
      {"a10", 125e12, 31.2e12, 600e9, 23028_MiB, kPcie4, {}},
      {"a100-40gb", 312e12, 19.5e12, 1555e9, 40960_MiB, kPcie4, kDgxA100},
      {"a100-80gb", 312e12, 19.5e12, 2039e9, 81920_MiB, kPcie4, kDgxA100},
      {"l4", 121e12, 30.3e12, 300e9, 23034_MiB, kPcie4, {}},
      {"l40", 181e12, 90.5e12, 864e9, 46068_MiB, kPcie4, {}},
      {"l40s", 362e12, 91.6e12, 864e9, 46068_MiB, kPcie4, {}},
      {"rtx-3060", 25.5e12, 12.7e12, 360e9, 12288_MiB, kPcie4, {}},
      {"rtx-3090", 71e12, 35.6e12, 936e9, 24576_MiB, kPcie4, {}},
      {"rtx-4060-ti-16gb", 44.1e12, 22.1e12, 288e9, 16380_MiB, kPcie4 / 2, {}},  // 8 lanes
      {"rtx-4090", 165.2e12, 82.6e12, 1008e9, 24564_MiB, kPcie4, {}},
      {"rtx-5090", 209.5e12, 104.8e12, 1792e9, 32607_MiB, kPcie5, {}},
      {"h100-sxm", 989.4e12, 66.9e12, 3350e9, 81559_MiB, kPcie5, kDgxH100},
      {"h200", 989.4e12, 66.9e12, 4800e9, 143771_MiB, kPcie5, kDgxH100},
      {"b200", 2250e12, 75e12, 7700e9, 183359_MiB, kPcie5, kDgxB200},
      {"gb200", 2500e12, 80e12, 8000e9, 189471_MiB, 450e9, kNvl72},  // NVLink-C2C to its host
      {"mi300x", 1307.4e12, 163.4e12, 5300e9, 192'000'000'000, kPcie5, kMi300xPlatform},
  };
  return all;
}

DeviceDescription describe(std::string_view text) {
  std::string lower = in_lower_case(text);
  const auto* const known =
      std::ranges::find(kShortNames, std::string_view(lower), &decltype(kShortNames)::value_type::first);
  if (known != kShortNames.end()) lower = known->second;
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
                        .host_bytes_per_second = kPcie4,
                        .server = std::nullopt};
  try {
    own.memory = parse_bytes(text.substr(second + 1));
  } catch (const UsageError&) {
    refuse(text);
  }
  if (flops <= 0 || rate <= 0 || own.usable() == 0) refuse(text);
  return own;
}

}  // namespace snug::described
