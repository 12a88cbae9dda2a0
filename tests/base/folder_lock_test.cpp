#include "snug/base/folder_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <system_error>

namespace snug {
namespace {

TEST(FolderLock, IsHeldOnceUntilItGoes) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("snug_lock_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  {
    auto first = FolderLock::take(folder);
    ASSERT_TRUE(first);
    EXPECT_FALSE(FolderLock::take(folder));
    const FolderLock moved = std::move(*first);
    EXPECT_FALSE(FolderLock::take(folder));
  }
  EXPECT_TRUE(FolderLock::take(folder));

  // Whoever is killed has let go.
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = FolderLock::take(folder);
    ::raise(lock ? SIGKILL : SIGTERM);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_TRUE(FolderLock::take(folder));
  std::filesystem::remove(folder);
  EXPECT_THROW((void)FolderLock::take(folder), std::system_error);
}

}  // namespace
}  // namespace snug
