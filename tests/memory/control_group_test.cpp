#include "snug/memory/control_group.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "snug/memory/process_memory.h"
#include "tests/base/scratch.h"

namespace snug::memory {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text << '\n';
}

TEST(ControlGroup, IsTheTightestOfTheSecondVersionUpToTheFirst) {
  const fs::path folder = testing::scratch("control_group/second"), own = folder / "own";
  write(own, "0::/pod/job");
  EXPECT_FALSE(group_memory(folder, own));
  write(folder / "pod/memory.max", "8192");
  write(folder / "pod/memory.current", "6000");
  write(folder / "pod/memory.stat", "anon 4000\ninactive_file 500\ninactive_file_other 9");
  write(folder / "pod/job/memory.max", "max");
  write(folder / "pod/job/memory.current", "5000");
  const auto found = group_memory(folder, own);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->limit, 8192);
  EXPECT_EQ(found->available, 8192 - 6000 + 500);
  write(folder / "pod/job/memory.max", "5100");
  write(folder / "pod/job/memory.swap.max", "max");
  EXPECT_FALSE(group_memory(folder, own)->swap);
  write(folder / "pod/job/memory.swap.max", "700");
  EXPECT_EQ(group_memory(folder, own)->swap, 700);
  EXPECT_EQ(group_memory(folder, own)->available, 100);
  // More than is allowed, for a moment.
  write(folder / "pod/job/memory.current", "5200");
  EXPECT_EQ(group_memory(folder, own)->available, 0);
}

TEST(ControlGroup, EndsWhereTheGroupIsSlowedDown) {
  const fs::path folder = testing::scratch("control_group/high"), own = folder / "own";
  write(own, "0::/job");
  write(folder / "job/memory.max", "max");
  write(folder / "job/memory.high", "max");
  write(folder / "job/memory.current", "1000");
  EXPECT_FALSE(group_memory(folder, own));
  write(folder / "job/memory.high", "3000");
  EXPECT_EQ(group_memory(folder, own)->limit, 3000);
  EXPECT_EQ(group_memory(folder, own)->available, 2000);
  write(folder / "job/memory.max", "2500");
  EXPECT_EQ(group_memory(folder, own)->limit, 2500);
}

TEST(ControlGroup, IsTheContainersOwnWhereThePathIsTheHosts) {
  const fs::path folder = testing::scratch("control_group/container"), own = folder / "own";
  write(own, "0::/../../elsewhere");
  write(folder / "memory.max", "4096");
  write(folder / "memory.current", "96");
  EXPECT_EQ(group_memory(folder, own)->available, 4000);
}

TEST(ControlGroup, OfTheFirstVersionIsThatOfTheMemoryController) {
  const fs::path folder = testing::scratch("control_group/first"), own = folder / "own";
  write(own, "7:cpu,cpuacct:/other\n5:memory:/job");
  write(folder / "memory/memory.limit_in_bytes", "9223372036854771712");  // none
  write(folder / "memory/memory.usage_in_bytes", "77");
  EXPECT_FALSE(group_memory(folder, own));
  write(folder / "memory/job/memory.limit_in_bytes", "1000");
  write(folder / "memory/job/memory.usage_in_bytes", "300");
  write(folder / "memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 50");
  EXPECT_EQ(group_memory(folder, own)->limit, 1000);
  EXPECT_FALSE(group_memory(folder, own)->swap);
  write(folder / "memory/job/memory.memsw.limit_in_bytes", "1300");
  EXPECT_EQ(group_memory(folder, own)->swap, 300);
  EXPECT_EQ(group_memory(folder, own)->available, 750);
}

TEST(ControlGroup, TheMachineIsNoLargerThanWhatItLeaves) {
  const MachineMemory machine = machine_memory();
  EXPECT_GT(machine.total, 0);
  EXPECT_GT(machine.available, 0);
  EXPECT_LE(machine.available, machine.total);
  const auto group = group_memory();
  EXPECT_TRUE(!group || machine.total <= group->limit);
}

}  // namespace
}  // namespace snug::memory
