#include "snug/memory/spill_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <vector>

#include "snug/base/errors.h"

namespace snug::memory {
namespace {

std::vector<std::byte> pattern(std::size_t size, int from) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(from + static_cast<int>(i));
  return bytes;
}

TEST(SpillFile, GivesBackWhatWasWritten) {
  SpillFile file;
  const auto first = pattern(100000, 1), second = pattern(7, 200);
  EXPECT_EQ(file.append(first), 0);
  EXPECT_EQ(file.append(second), 100000);
  EXPECT_EQ(file.append({}), 100007);
  std::vector<std::byte> read(first.size()), other(second.size());
  file.read(0, read);
  file.read(100000, other);
  EXPECT_EQ(read, first);
  EXPECT_EQ(other, second);
}

TEST(SpillFile, LeavesNoNameBehind) {
  const auto folder = std::filesystem::temp_directory_path() / "snug-spill-test";
  std::filesystem::create_directories(folder);
  ::setenv("TMPDIR", folder.c_str(), 1);
  {
    SpillFile file;
    file.append(pattern(10, 0));
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  ::unsetenv("TMPDIR");
  std::filesystem::remove_all(folder);
}

TEST(SpillFile, NamesAFolderThatIsNotThere) {
  ::setenv("TMPDIR", "/no/such/folder", 1);
  try {
    SpillFile file;
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/folder"), std::string::npos);
  }
  ::unsetenv("TMPDIR");
}

/// A limit on the size of files stands for a full disk.
TEST(SpillFile, IsAsBeforeWhenThereIsNoRoom) {
  SpillFile file;
  const auto first = pattern(1000, 1);
  file.append(first);
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, &before);
  rlimit limit{}, small{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  small = {5000, limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(file.append(pattern(8000, 3)), Error);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::sigaction(SIGXFSZ, &before, nullptr);
  EXPECT_EQ(file.size(), 1000);
  std::vector<std::byte> read(first.size());
  file.read(0, read);
  EXPECT_EQ(read, first);
  EXPECT_EQ(file.append(first), 1000);
}

}  // namespace
}  // namespace snug::memory
