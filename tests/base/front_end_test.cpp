// What snug asks of a language above it: exceptions that are translated, a lock that is given up.
#include "snug/base/front_end.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "tests/base/front_end_scope.h"

namespace snug {
namespace {

using testing::FrontEndScope;

void throw_through_libtorch() {
  try {
    throw Error("as it is");
  } catch (const Error&) {
    throw_into_libtorch();
  }
}

TEST(FrontEnd, WithoutOneExceptionsPassAsTheyAre) {
  EXPECT_THROW(throw_through_libtorch(), Error);
  EXPECT_EQ(front_end().untranslate(std::make_exception_ptr(Error("x"))), nullptr);
}

TEST(FrontEnd, ThrowsInPlaceOfWhatItTranslates) {
  static constexpr FrontEnd kTranslates{
      .translate = [](const std::exception_ptr&) { throw std::out_of_range("other"); }};
  static constexpr FrontEnd kHasNothing{};
  {
    const FrontEndScope scope(kTranslates);
    EXPECT_THROW(throw_through_libtorch(), std::out_of_range);
  }
  const FrontEndScope scope(kHasNothing);
  EXPECT_THROW(throw_through_libtorch(), Error);
}

/// A lock that is only counted.
std::atomic<int> g_given_up, g_taken_back;
int g_lock;

constexpr FrontEnd kCounts{.give_up = []() -> void* {
                             ++g_given_up;
                             return &g_lock;
                           },
                           .take_back =
                               [](void* lock) {
                                 EXPECT_EQ(lock, &g_lock);
                                 ++g_taken_back;
                               }};

TEST(PatientLock, GivesTheLockUpOnlyWhereItWaits) {
  const FrontEndScope scope(kCounts);
  g_given_up = g_taken_back = 0;
  std::mutex mutex;
  { const PatientLock lock(mutex); }
  EXPECT_EQ(g_given_up, 0);
  std::atomic<bool> held = false;
  // Lets go of the mutex when the other one has given up what this one might need.
  std::thread holder([&] {
    const std::lock_guard lock(mutex);
    held = true;
    while (g_given_up == 0) std::this_thread::yield();
  });
  while (!held) std::this_thread::yield();
  {
    const PatientLock lock(mutex);
    EXPECT_EQ(g_given_up, 1);
    EXPECT_EQ(g_taken_back, 1);
  }
  holder.join();
}

TEST(GivenUp, TakesItBackAtItsEnd) {
  const FrontEndScope scope(kCounts);
  g_given_up = g_taken_back = 0;
  {
    const GivenUp without;
    EXPECT_EQ(g_given_up, 1);
    EXPECT_EQ(g_taken_back, 0);
  }
  EXPECT_EQ(g_taken_back, 1);
}

}  // namespace
}  // namespace snug
