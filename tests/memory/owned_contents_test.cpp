#include "snug/memory/owned_contents.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <thread>

namespace snug::memory {
namespace {

class Owner final : public ContentsOwner {
 public:
  void hold(std::int32_t, Access) override { ++held; }
  void release(std::int32_t) noexcept override { --held; }
  void forget(std::int32_t) noexcept override { ++forgotten; }
  std::atomic<int> held = 0, forgotten = 0;
};

TEST(OwnedContents, AreHeldByWhoUsesThem) {
  const auto owner = std::make_shared<Owner>();
  {
    const at::Tensor tensor = at::empty({4});
    EXPECT_FALSE(has_owner(tensor));
    give_contents(*tensor.storage().unsafeGetStorageImpl(), {.owner = owner, .which = 3});
    EXPECT_TRUE(has_owner(tensor));
    const ContentsThere there(tensor);
    EXPECT_EQ(owner->held, 1);
  }
  EXPECT_EQ(owner->held, 0);
  EXPECT_EQ(owner->forgotten, 1);
}

/// As a saver does while the window moves tensors: with the thread sanitizer a race is an error.
TEST(OwnedContents, HaveAnOwnerWhileTheyGetAnAddress) {
  const auto owner = std::make_shared<Owner>();
  const at::Tensor tensor = at::empty({4});
  give_contents(*tensor.storage().unsafeGetStorageImpl(), {.owner = owner});
  std::array<float, 4> memory{};
  std::atomic<bool> over = false;
  std::thread window([&] {
    for (int i = 0; i < 20'000; ++i)
      set_address(*tensor.storage().unsafeGetStorageImpl(), i % 2 == 0 ? memory.data() : nullptr);
    over = true;
  });
  int without = 0;
  while (!over) {
    without += has_owner(tensor) ? 0 : 1;
    const ContentsThere there(tensor);
    without += owner->held == 1 ? 0 : 1;
  }
  window.join();
  EXPECT_EQ(without, 0);
}

}  // namespace
}  // namespace snug::memory
