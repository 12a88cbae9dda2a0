#include "snug/memory/held_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "snug/base/errors.h"
#include "snug/memory/accelerator_memory.h"

namespace snug::memory {
namespace {

std::optional<Bytes> limit() { return device_memory(c10::kCPU).stats().limit; }
std::unique_ptr<HeldLimit> held(Bytes bytes) { return std::make_unique<HeldLimit>(device_memory(c10::kCPU), bytes); }

TEST(HeldLimit, TheNewestOfThoseThatAreLeftCounts) {
  DeviceMemory& memory = device_memory(c10::kCPU);
  memory.set_limit(5_GiB);
  auto first = held(1_GiB), second = held(2_GiB), third = held(3_GiB);
  EXPECT_EQ(limit(), 3_GiB);
  EXPECT_TRUE(third->newest());
  EXPECT_FALSE(second->newest());
  second.reset();
  EXPECT_EQ(limit(), 3_GiB);
  third.reset();
  EXPECT_EQ(limit(), 1_GiB);
  first.reset();
  EXPECT_EQ(limit(), 5_GiB);
  memory.set_limit(std::nullopt);
}

TEST(HeldLimit, NoneIsALimitLikeAnyOther) {
  auto first = held(1_GiB);
  auto none = std::make_unique<HeldLimit>(device_memory(c10::kCPU), std::nullopt);
  EXPECT_EQ(limit(), std::nullopt);
  first.reset();
  EXPECT_EQ(limit(), std::nullopt);
  first = held(2_GiB);
  EXPECT_EQ(limit(), 2_GiB);
  none.reset();
  EXPECT_EQ(limit(), 2_GiB);
  first.reset();
}

TEST(HeldLimit, ReplacingOneKeepsTheNewOnes) {
  auto one = held(1_GiB);
  one = held(2_GiB);  // the old one goes after the new one has come
  EXPECT_EQ(limit(), 2_GiB);
  one.reset();
  EXPECT_EQ(limit(), std::nullopt);
}

/// The memory of a device that nothing can be asked of any more once it is broken.
class BreakableSupply final : public Supply {
 public:
  explicit BreakableSupply(const bool& broken) : broken_(broken) {}
  c10::DataPtr take(std::size_t) override { return {}; }
  void give(void*) noexcept override {}
  [[nodiscard]] Bytes rounded(Bytes bytes) const override { return bytes; }
  [[nodiscard]] Bytes reserved() const override { return 0; }
  void limit_reserved(std::optional<Bytes>) override {
    if (broken_) throw Error("device-side assert triggered");
  }
  void release_cached() override {}
  [[nodiscard]] MachineMemory capacity() const override { return {}; }
  [[nodiscard]] bool has_given(const c10::DataPtr&) const override { return false; }

 private:
  const bool& broken_;
};

TEST(HeldLimit, LetsAnErrorOfTheDevicePass) {
  bool broken = false;
  AcceleratorMemory memory(c10::Device(c10::kCUDA, 0), std::make_unique<BreakableSupply>(broken), [](void*) {});
  const auto train = [&] {
    const HeldLimit held(memory, 1_MiB);
    broken = true;
    throw Error("an index is out of range");
  };
  EXPECT_THAT(train, ::testing::ThrowsMessage<Error>(::testing::HasSubstr("out of range")));
  EXPECT_THROW(HeldLimit(memory, 2_MiB), Error) << "whoever sets one anew is told";
}

TEST(HeldLimit, AForkedChildHasNoneOfItsParents) {
  auto first = held(1_GiB), second = held(2_GiB);
  const pid_t child = ::fork();
  if (child == 0) {
    bool right = limit() == std::nullopt;
    first.reset();
    auto own = held(3_GiB);
    own.reset();
    right = right && limit() == std::nullopt;
    own = held(3_GiB);
    second.reset();
    ::_exit(right && limit() == 3_GiB ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(limit(), 2_GiB);
}

}  // namespace
}  // namespace snug::memory
