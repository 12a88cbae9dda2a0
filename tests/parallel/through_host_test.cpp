// Collectives of tensors on accelerators, which streams write when chance has them.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/parallel/process_group.h"
#include "tests/device/simulated_device.h"
#include "tests/device/test_device.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using testing::in_processes;

class ThroughHost : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::can_simulate_devices()) GTEST_SKIP() << "a LibTorch for CUDA takes no other accelerator beside it";
  }
};

/// Of one process on its own device; whatever is read of it is written by operators that may still wait in a stream
/// that is not the one of now.
class Here {
 public:
  explicit Here(ProcessGroup& group)
      : group_(group),
        on_(testing::kSimulated, static_cast<c10::DeviceIndex>(group.rank())),
        other_(c10::impl::VirtualGuardImpl(testing::kSimulated).getStreamFromGlobalPool(on_)) {}

  [[nodiscard]] at::Tensor made(double times, std::int64_t elements = 6) const {
    const c10::StreamGuard there(other_);
    return at::ones({elements}, at::TensorOptions(on_)).mul_(times).mul_(mine());
  }
  [[nodiscard]] at::Tensor empty(std::int64_t elements) const { return at::zeros({elements}, at::TensorOptions(on_)); }
  [[nodiscard]] double mine() const { return group_.rank() + 1.0; }
  static void expect(at::Tensor found, std::vector<double> expected) {
    for (double& one : expected) one += 0.5;
    const at::Tensor there = found.add(0.5).cpu();
    const at::Tensor numbers = at::tensor(expected);
    EXPECT_TRUE(at::equal(there.to(at::kDouble), numbers.to(at::kDouble))) << there << numbers;
  }

  void does_all_of_them() const {
    at::Tensor sum = made(2);
    group_.run(AllReduce{sum});
    expect(sum, std::vector<double>(6, 6));
    at::Tensor largest = made(3);
    group_.run(AllReduce{largest, Reduce::Max});
    expect(largest, std::vector<double>(6, 6));
    at::Tensor from_second = made(4);
    group_.run(Broadcast{from_second, 1});
    expect(from_second, std::vector<double>(6, 8));
    at::Tensor part = empty(3);
    group_.run(ReduceScatter{part, made(5)});
    expect(part, std::vector<double>(3, 15));
    at::Tensor all = empty(4);
    group_.run(AllGather{all, made(6, 2)});
    expect(all, {6, 6, 12, 12});
    at::Tensor exchanged = empty(4);
    group_.run(AllToAll{exchanged, made(7, 4)});
    expect(exchanged, {7, 7, 14, 14});
    if (group_.rank() == 0) group_.run(Send{made(8), 1, 3});
    if (group_.rank() == 1) {
      const at::Tensor come = made(8);
      at::Tensor was;
      {
        const c10::StreamGuard there(other_);
        was = come.add(1);
      }
      group_.run(Receive{come, 0, 3});
      expect(come, std::vector<double>(6, 8));
      c10::impl::VirtualGuardImpl(testing::kSimulated).synchronizeDevice(on_.index());
      expect(was, std::vector<double>(6, 17));
    }
  }

 private:
  ProcessGroup& group_;
  c10::Device on_;
  c10::Stream other_;
};

TEST_F(ThroughHost, SeesWhatStreamsHaveStillToWriteAndIsSeenByThem) {
  in_processes(2, [](World& world) {
    testing::install_simulated_devices();
    const Here here(*world.all());
    here.does_all_of_them();
    const Bytes before = memory::device_memory(c10::kCPU).stats().allocated;
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      const testing::OrderOfChance order(seed);
      here.does_all_of_them();
    }
    // Gloo's thread lets go of the last one a moment later.
    EXPECT_EQ(testing::settled(memory::device_memory(c10::kCPU)), before) << "no copy stays on the host";
  });
}

TEST_F(ThroughHost, RefusesTensorsOfDifferentDevices) {
  in_processes(2, [](World& world) {
    testing::install_simulated_devices();
    const at::Tensor here = at::ones({2}),
                     there = at::ones({4}, at::TensorOptions(c10::Device(testing::kSimulated, 0)));
    EXPECT_THROW(world.all()->run(AllGather{there, here}), UsageError);
  });
}

}  // namespace
}  // namespace snug::parallel
