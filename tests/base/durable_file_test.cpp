// DurableFile and MappedFile: whole or not at all, and writes that do not reach the file.
#include "snug/base/durable_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "snug/base/mapped_file.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

fs::path scratch(const char* name) {
  const fs::path folder = fs::path(::testing::TempDir()) / "snug_durable_file";
  fs::create_directories(folder);
  return folder / name;
}

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Files that were begun and are there still.
std::ptrdiff_t unfinished() {
  const auto is_one = [](const fs::directory_entry& entry) {
    return entry.path().string().find(".unfinished") != std::string::npos;
  };
  return std::count_if(fs::directory_iterator(scratch("")), fs::directory_iterator(), is_one);
}

void write(DurableFile& file, std::string_view text) { file.write(std::as_bytes(std::span(text))); }

int error_of(const auto& action) {
  try {
    action();
  } catch (const std::system_error& error) {
    return error.code().value();
  }
  return 0;
}

TEST(DurableFile, IsThereOnlyWhenItIsFinished) {
  const fs::path path = scratch("whole");
  std::ofstream(path) << "before";
  {
    DurableFile file(path);
    write(file, "one ");
    write(file, "two");
    EXPECT_EQ(contents(path), "before");
    file.finish();
  }
  EXPECT_EQ(contents(path), "one two");
  { DurableFile given_up(path); }
  EXPECT_EQ(contents(path), "one two");
  EXPECT_EQ(unfinished(), 0);
}

/// A limit on the size of files stands for a full disk.
TEST(DurableFile, AWriteThatFailsLeavesWhatWasThere) {
  const fs::path path = scratch("full");
  std::ofstream(path) << "before";
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little{10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const int error = error_of([&] {
    DurableFile file(path);
    write(file, "more than there is room for");
    file.finish();
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(error, EFBIG);
  EXPECT_EQ(contents(path), "before");
  EXPECT_EQ(unfinished(), 0);
}

TEST(DurableFile, TwoWritersOfOneNameDoNotDisturbEachOther) {
  const fs::path path = scratch("shared");
  DurableFile first(path), second(path);
  write(first, "first");
  write(second, "second one");
  first.finish();
  EXPECT_EQ(contents(path), "first");
  second.finish();
  EXPECT_EQ(contents(path), "second one");
  EXPECT_EQ(unfinished(), 0);
}

TEST(DurableFile, PermissionsGoOver) {
  const fs::path path = scratch("private");
  std::ofstream(path) << "before";
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  DurableFile file(path);
  file.finish();
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(DurableFile, AMissingFolderIsAnError) {
  EXPECT_EQ(error_of([] { DurableFile file(scratch("nowhere") / "file"); }), ENOENT);
}

TEST(MappedFile, ReadsAndWritesPrivately) {
  const fs::path path = scratch("mapped");
  std::ofstream(path) << "text";
  MappedFile shared(path);
  MappedFile file(path, MappedFile::Writes::Private);
  const_cast<std::uint8_t&>(file.bytes()[0]) = 'n';
  file.let_go();  // nothing of it may be lost
  EXPECT_EQ(file.bytes()[0], 'n');
  EXPECT_EQ(shared.bytes()[0], 't');
  shared.let_go();
  EXPECT_EQ(shared.bytes()[0], 't');
  EXPECT_EQ(contents(path), "text");
  MappedFile moved = std::move(file);
  EXPECT_TRUE(file.bytes().empty());  // NOLINT(bugprone-use-after-move): it is empty then
  shared = std::move(moved);
  EXPECT_EQ(shared.bytes()[0], 'n');
}

TEST(MappedFile, NoFileAFolderAndAnEmptyFile) {
  EXPECT_EQ(error_of([] { MappedFile file(scratch("nothing")); }), ENOENT);
  EXPECT_EQ(error_of([] { MappedFile file(fs::path(::testing::TempDir())); }), EISDIR);
  std::ofstream(scratch("empty")).flush();
  EXPECT_TRUE(MappedFile(scratch("empty")).bytes().empty());
}

}  // namespace
}  // namespace snug
