#include "snug/record/random_state.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <mutex>
#include <utility>

namespace snug::record {
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

at::Generator default_generator(c10::Device device) { return at::globalContext().defaultGenerator(device); }

std::vector<at::Generator> default_generators() {
  std::vector<at::Generator> all{default_generator(c10::Device(c10::kCPU))};
  if (const auto accelerator = at::getAccelerator()) {
    for (c10::DeviceIndex i = 0; i < at::accelerator::deviceCount(); ++i)
      all.push_back(default_generator(c10::Device(*accelerator, i)));
  }
  return all;
}

RandomStateScope::RandomStateScope(const RandomState& recorded) : before_(save_random_state(recorded.generator)) {
  restore(recorded);
}

RandomStateScope::~RandomStateScope() { restore(before_); }

}  // namespace snug::record
