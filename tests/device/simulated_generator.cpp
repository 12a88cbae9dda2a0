#include "tests/device/simulated_generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

class Generator final : public c10::GeneratorImpl {
 public:
  Generator(c10::DeviceIndex index, at::Generator cpu)
      : GeneratorImpl({kSimulated, index}, c10::DispatchKeySet(c10::DispatchKey::HPU)), cpu_(std::move(cpu)) {}

  void set_current_seed(std::uint64_t seed) override { cpu_.set_current_seed(seed); }
  void set_offset(std::uint64_t /*offset*/) override { TORCH_CHECK(false, "simulated device: no offsets"); }
  std::uint64_t get_offset() const override { TORCH_CHECK(false, "simulated device: no offsets"); }
  std::uint64_t current_seed() const override { return cpu_.current_seed(); }
  std::uint64_t seed() override { return cpu_.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu_.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(device().index(), cpu_.clone()); }

  [[nodiscard]] const at::Generator& cpu() const { return cpu_; }

 private:
  at::Generator cpu_;
};

}  // namespace

at::Generator new_simulated_generator(c10::DeviceIndex index) {
  return at::make_generator<Generator>(index, at::detail::createCPUGenerator());
}

at::Generator cpu_generator_of(const at::Generator& simulated) {
  return static_cast<Generator*>(simulated.unsafeGetGeneratorImpl())->cpu();
}

}  // namespace snug::testing
