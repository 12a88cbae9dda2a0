#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <vector>

namespace snug::record {

/// A generator as it stood before an operator drew from it.
struct RandomState {
  at::Generator generator;
  at::Tensor state;
};

/// The present state of `generator`.
RandomState save_random_state(at::Generator generator);

/// Puts the generator back to where it stood.
void restore(const RandomState& recorded);

/// The default generator of a device.
at::Generator default_generator(c10::Device device);

/// Those of the CPU and of all devices of the accelerator.
std::vector<at::Generator> default_generators();

/// Puts a generator back to a recorded state for the life of the scope, and then to where it was.
class RandomStateScope {
 public:
  explicit RandomStateScope(const RandomState& recorded);
  ~RandomStateScope();
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;

 private:
  RandomState before_;
};

}  // namespace snug::record
