#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <vector>

namespace snug::testing {

/// A tensor of the CPU over the same memory, which holds none of it: as kernels have their operands by address.
at::Tensor as_cpu(const at::Tensor& simulated);
/// A new tensor of the device, of the sizes, strides and type of one of the CPU's; its contents are not yet.
at::Tensor empty_as(const at::Tensor& cpu, c10::Device device);

/// Puts a kernel into the device's current stream, which makes tensors. `compute` makes them on the CPU, of the same
/// sizes each time; it is called now, for their sizes, and under an order of chance again when it is its turn.
std::vector<at::Tensor> launch(c10::Device device, const std::function<std::vector<at::Tensor>()>& compute);

/// Operators for which the CPU has a kernel, and LibTorch a composition of others for devices that have none, run the
/// CPU's: else their bits were others, and their memory. Once, when all operators are there.
void prefer_kernels_of_the_cpu();

/// For the life of the scope what this thread allocates of the CPU's memory is not counted there: a kernel's scratch.
class KernelScope {
 public:
  KernelScope();
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  bool before_;
};
/// Makes that so.
void install_scratch_allocator();

}  // namespace snug::testing
