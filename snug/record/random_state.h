#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
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

/// The default generator of a device: the CPU's for one that is no accelerator to LibTorch.
at::Generator default_generator(c10::Device device);

/// Those of the CPU and of all devices of the accelerator.
std::vector<at::Generator> default_generators();

/// A hash of where a generator stands. Takes no memory for the CPU's; nothing else may use the generator meanwhile (see
/// at::Generator::mutex).
[[nodiscard]] std::uint64_t position_of(const at::Generator& generator);

/// What an operator has drawn: all between two positions of a generator, if nobody else drew from it meanwhile.
struct Draw {
  RandomState from;
  std::uint64_t to = 0;  ///< see position_of
  bool moved = false;    ///< the operator has drawn
};

/// Puts a generator back to where a recorded draw began, for an operator that draws the same again, and then to where
/// it was.
class DrawAgain {
 public:
  explicit DrawAgain(const Draw& recorded);
  ~DrawAgain();
  DrawAgain(const DrawAgain&) = delete;
  DrawAgain& operator=(const DrawAgain&) = delete;

  /// The operator has run: puts the generator back. False when it did not end where the recorded draw did: another
  /// thread has drawn from it while the operator ran, now or when it was recorded.
  [[nodiscard]] bool finish();

 private:
  at::Generator generator_;
  std::uint64_t end_;
  at::Tensor before_;  // undefined when it has been put back
};

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
