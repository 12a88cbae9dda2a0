#include "snug/record/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <array>
#include <bit>
#include <limits>
#include <mutex>
#include <span>
#include <utility>

#include "snug/base/hash.h"

namespace snug::record {
namespace {

/// The engine without a copy of it in a tensor: this is asked for beside every kernel that draws.
std::uint64_t position_of_cpu(at::CPUGeneratorImpl& generator) {
  const at::mt19937_data_pod engine = generator.engine().data();
  const auto kept = generator.next_float_normal_sample();
  const auto kept_double = generator.next_double_normal_sample();
  const std::array<std::uint64_t, 6> words{
      hash_64(std::as_bytes(std::span(engine.state_))),
      engine.seed_,
      static_cast<std::uint64_t>(engine.left_),
      engine.next_,
      std::bit_cast<std::uint32_t>(kept.value_or(std::numeric_limits<float>::quiet_NaN())),
      std::bit_cast<std::uint64_t>(kept_double.value_or(std::numeric_limits<double>::quiet_NaN()))};
  return hash_64(std::as_bytes(std::span(words)));
}

}  // namespace

RandomState save_random_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  at::Tensor state = generator.get_state();
  return {std::move(generator), std::move(state)};
}

void restore(const RandomState& recorded) {
  at::Generator generator = recorded.generator;
  const std::lock_guard lock(generator.mutex());
  generator.set_state(recorded.state);
}

at::Generator default_generator(c10::Device device) {
  const bool has_own = device.is_cpu() || at::isAccelerator(device.type());
  return at::globalContext().defaultGenerator(has_own ? device : c10::Device(c10::kCPU));
}

std::vector<at::Generator> default_generators() {
  std::vector<at::Generator> all{default_generator(c10::Device(c10::kCPU))};
  if (const auto accelerator = at::getAccelerator()) {
    for (c10::DeviceIndex i = 0; i < at::accelerator::deviceCount(); ++i) {
      try {
        all.push_back(default_generator(c10::Device(*accelerator, i)));
      } catch (const c10::Error&) {  // a LibTorch for CUDA without a driver: nothing draws there
        break;
      }
    }
  }
  return all;
}

std::uint64_t position_of(const at::Generator& generator) {
  if (auto* const cpu = dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl()))
    return position_of_cpu(*cpu);
  const at::Tensor state = generator.get_state();  // a seed and an offset, in the CPU's memory
  return hash_64({static_cast<const std::byte*>(state.const_data_ptr()), state.nbytes()});
}

DrawAgain::DrawAgain(const Draw& recorded) : generator_(recorded.from.generator), end_(recorded.to) {
  // At once: what another thread draws from here to finish() shows.
  const std::lock_guard lock(generator_.mutex());
  before_ = generator_.get_state();
  generator_.set_state(recorded.from.state);
}

DrawAgain::~DrawAgain() {
  if (before_.defined()) static_cast<void>(finish());
}

bool DrawAgain::finish() {
  const at::Tensor before = std::exchange(before_, at::Tensor());
  const std::lock_guard lock(generator_.mutex());
  const bool same = position_of(generator_) == end_;
  generator_.set_state(before);
  return same;
}

RandomStateScope::RandomStateScope(const RandomState& recorded) : before_(save_random_state(recorded.generator)) {
  restore(recorded);
}

RandomStateScope::~RandomStateScope() { restore(before_); }

}  // namespace snug::record
