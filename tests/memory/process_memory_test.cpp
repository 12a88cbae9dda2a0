#include "snug/memory/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace snug::memory {
namespace {

constexpr std::size_t kBlock = 64 << 20;
constexpr Bytes kSlack = 8_MiB;  // other pages come and go

TEST(ProcessMemory, FollowsWhatTheProcessTouches) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer keeps several bytes for each that is touched";
#endif
  const ProcessMemory before = process_memory();
  ASSERT_GT(before.resident, 1_MiB);
  EXPECT_GE(before.resident_peak, before.resident);
  void* block = ::mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  EXPECT_LT(process_memory().resident, before.resident + kSlack);
  std::memset(block, 1, kBlock);
  const ProcessMemory touched = process_memory();
  EXPECT_GT(touched.resident, before.resident + static_cast<Bytes>(kBlock) - kSlack);
  EXPECT_LT(touched.resident, before.resident + static_cast<Bytes>(kBlock) + kSlack);
  ::munmap(block, kBlock);
  const ProcessMemory after = process_memory();
  EXPECT_LT(after.resident, before.resident + kSlack);
  EXPECT_GE(after.resident_peak, touched.resident - kSlack);
}

TEST(MachineMemory, HasTheTotalThatTheSystemNames) {
  const MachineMemory machine = machine_memory();
  const Bytes physical = static_cast<Bytes>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  EXPECT_NEAR(static_cast<double>(machine.total), static_cast<double>(physical), 0.01 * static_cast<double>(physical));
  EXPECT_GT(machine.available, 0);
  EXPECT_LE(machine.available, machine.total);
  EXPECT_EQ(machine.total % 1024, 0);
}

}  // namespace
}  // namespace snug::memory
