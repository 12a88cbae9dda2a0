#include "snug/record/random_state.h"

#include <ATen/Context.h>

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

RandomStateScope::RandomStateScope(const RandomState& recorded) : before_(save_random_state(recorded.generator)) {
  restore(recorded);
}

RandomStateScope::~RandomStateScope() { restore(before_); }

}  // namespace snug::record
