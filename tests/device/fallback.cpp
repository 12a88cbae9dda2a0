// Operators on simulated devices are those of the CPU.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "snug/described/kernel_seconds.h"
#include "tests/device/launch.h"
#include "tests/device/lowered.h"
#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

/// In the order in which they stand, those of lists one after the other.
std::vector<at::Tensor> tensors_in(const torch::jit::Stack& results) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : results) {
    if (value.isTensor()) {
      all.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) all.push_back(t);
    }
  }
  return all;
}

/// Puts others in their place.
void replace_tensors(torch::jit::Stack& results, const std::vector<at::Tensor>& by) {
  std::size_t next = 0;
  for (c10::IValue& value : results) {
    if (value.isTensor()) {
      value = by[next++];
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (std::size_t i = value.toTensorList().size(); i > 0; --i) list.push_back(by[next++]);
      value = list;
    }
  }
}

/// Writes what a call has made to where its results are.
void fill(const std::vector<at::Tensor>& places, const std::vector<at::Tensor>& from) {
  const KernelScope kernel;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].defined()) at::Tensor(places[i]).copy_(from[i]);
  }
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const Lowered call(op, *stack);
  const c10::Device device = call.device();
  Streams& streams = Streams::instance();
  const c10::Stream stream = current_simulated_stream(device);
  streams.catch_up(stream);
  std::optional<Lowered> later;
  if (streams.in_order_of_chance() && !call.is_view()) later.emplace(call.for_later());
  Made made;
  {
    const KernelScope kernel;
    made = later ? call.run_on_copies() : call.run();
    if (later && std::ranges::any_of(made.operands, &StandIn::has_grown)) {
      later.reset();  // which moves them, now
      made = call.run();
    }
  }
  const std::vector<at::Tensor> found = tensors_in(made.results);
  std::vector<at::Tensor> results, places;
  for (const at::Tensor& t : found) {
    at::Tensor of_device = t.defined() ? of_operand(t, made.operands) : t;
    const bool is_new = t.defined() && !of_device.defined();
    if (is_new) of_device = empty_as(t, device);
    places.push_back(is_new ? as_cpu(of_device) : at::Tensor());
    results.push_back(std::move(of_device));
  }
  const std::size_t count = op.schema().arguments().size();
  const SimulatedSpeed speed = simulated_speed();
  const double seconds = described::kernel_seconds(
      {.least_seconds = speed.kernel_seconds,
       .flops = speed.flops_per_second,
       .flops_of_fp32 = speed.flops_per_second,
       .bytes_per_second = speed.memory_bytes_per_second},
      op, c10::ArrayRef<c10::IValue>(stack->data() + stack->size() - count, count), made.results);
  if (later) {
    const auto run = [call = *std::move(later), places] {
      Made now;
      {
        const KernelScope kernel;
        now = call.run();
      }
      fill(places, tensors_in(now.results));
    };
    streams.put(stream, run, seconds);
  } else if (!call.is_view()) {
    const auto write = [&] { fill(places, found); };
    streams.put(stream, write, seconds);
    streams.catch_up(stream);
  }
  if (found.empty() && !call.writes()) streams.wait_for(stream);  // what the host reads
  replace_tensors(made.results, results);
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  stack->insert(stack->end(), made.results.begin(), made.results.end());
}

TORCH_LIBRARY_IMPL(_, HPU, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

void prefer_kernels_of_the_cpu() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::HPU, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    const auto has = [&](c10::DispatchKey key) { return op && op->hasKernelForDispatchKey(key); };
    const bool is_composed =
        has(c10::DispatchKey::CompositeExplicitAutograd) || has(c10::DispatchKey::CompositeImplicitAutograd);
    if (is_composed && has(c10::DispatchKey::CPU) && !has(c10::DispatchKey::HPU)) {
      library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
    }
  }
}

}  // namespace snug::testing
