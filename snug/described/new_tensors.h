#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace snug::described {

/// New tensors are made on this device where LibTorch's factories are told none, by any thread, as long as this lives:
/// models are made on a described device from the start, and not moved there from the host, whose memory may have no
/// room for them. One at a time.
class NewTensorsOn {
 public:
  explicit NewTensorsOn(c10::Device device);
  ~NewTensorsOn();
  NewTensorsOn(const NewTensorsOn&) = delete;
  NewTensorsOn& operator=(const NewTensorsOn&) = delete;

 private:
  struct Factories;
  std::unique_ptr<Factories> factories_;
};

}  // namespace snug::described
