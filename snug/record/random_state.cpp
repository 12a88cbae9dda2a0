#include "snug/record/random_state.h"

#include <ATen/Context.h>

#include <mutex>
#include <utility>

namespace snug::record {
namespace {

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

RandomState save_random_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  at::Tensor state = generator.get_state();
  return {std::move(generator), std::move(state)};
}

at::Generator default_generator(c10::Device device) { return at::globalContext().defaultGenerator(device); }

RandomStateScope::RandomStateScope(const RandomState& recorded) : before_(save_random_state(recorded.generator)) {
  set_state(before_.generator, recorded.state);
}

RandomStateScope::~RandomStateScope() { set_state(before_.generator, before_.state); }

}  // namespace snug::record
