// DurableFile and MappedFile: whole or not at all, and writes that do not reach the file.
#include "snug/base/durable_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

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

/// A folder of links, made anew: the tests before may have left what their names lead to.
fs::path folder_of_links() {
  const fs::path folder = scratch("links");
  fs::remove_all(folder);
  fs::create_directories(folder / "elsewhere");
  return folder;
}

TEST(DurableFile, FollowsAChainOfLinksAndLeavesThemInPlace) {
  const fs::path folder = folder_of_links();
  std::ofstream(folder / "elsewhere" / "target") << "before";
  fs::create_symlink("target", folder / "elsewhere" / "second");
  fs::create_symlink(fs::path("elsewhere") / "second", folder / "first");
  {
    DurableFile file(folder / "first");
    write(file, "after");
    EXPECT_EQ(contents(folder / "first"), "before");
    // Beside the target: a rename cannot leave a file system.
    const fs::directory_iterator begun(folder / "elsewhere");
    EXPECT_EQ(std::count_if(
                  begun, fs::directory_iterator(),
                  [](const auto& entry) { return entry.path().filename().string().starts_with("target.unfinished-"); }),
              1);
    file.finish();
  }
  EXPECT_EQ(fs::read_symlink(folder / "first"), fs::path("elsewhere") / "second");
  EXPECT_EQ(fs::read_symlink(folder / "elsewhere" / "second"), "target");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder / "elsewhere" / "target")));
  EXPECT_EQ(contents(folder / "elsewhere" / "target"), "after");
}

TEST(DurableFile, MakesWhatADanglingLinkLeadsTo) {
  const fs::path folder = folder_of_links();
  fs::create_symlink(folder / "elsewhere" / "new", folder / "link");
  DurableFile file(folder / "link");
  write(file, "text");
  file.finish();
  EXPECT_TRUE(fs::is_symlink(fs::symlink_status(folder / "link")));
  EXPECT_EQ(contents(folder / "elsewhere" / "new"), "text");
}

TEST(DurableFile, LinksInARingAndAFolderAreErrors) {
  const fs::path folder = folder_of_links();
  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  EXPECT_EQ(error_of([&] { DurableFile file(folder / "a"); }), ELOOP);
  EXPECT_TRUE(fs::is_symlink(fs::symlink_status(folder / "a")));
  EXPECT_EQ(error_of([&] { DurableFile file(folder / "elsewhere"); }), EISDIR);
}

TEST(DurableFile, WritesIntoAPipe) {
  const fs::path path = scratch("pipe");
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  DurableFile file(path);
  write(file, "through");
  file.finish();
  std::array<char, 16> piece{};
  EXPECT_EQ(::read(reader, piece.data(), piece.size()), 7);
  EXPECT_STREQ(piece.data(), "through");
  EXPECT_EQ(::read(reader, piece.data(), piece.size()), 0);  // finish() has closed it
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(path));
  EXPECT_EQ(unfinished(), 0);
}

/// Through a link, so that a failure replaces the link and not the device.
TEST(DurableFile, ADeviceIsWrittenAndNotReplaced) {
  const fs::path path = scratch("full_device");
  fs::remove(path);
  fs::create_symlink("/dev/full", path);
  EXPECT_EQ(error_of([&] {
              DurableFile file(path);
              write(file, "text");
              file.finish();
            }),
            ENOSPC);
  EXPECT_EQ(fs::read_symlink(path), "/dev/full");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(DurableFile, WhatStandardOutputGoesToIsWrittenBehindWhatWasPrinted) {
  const fs::path path = scratch("printed");
  const int output = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_GE(output, 0);
  std::fflush(stdout);
  const int before = ::dup(STDOUT_FILENO);
  ::dup2(output, STDOUT_FILENO);
  const auto printed = [](std::string_view text) {
    return ::write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  };
  const bool first = printed("1 ");
  const int error = error_of([&] {
    DurableFile file("/dev/stdout");
    write(file, "2 ");
    file.finish();
  });
  const bool last = printed("3");
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  ::close(output);
  EXPECT_TRUE(first && last);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(contents(path), "1 2 3");
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

TEST(DurableFile, WhatADeadWriterHasLeftIsRemovedAndNothingElse) {
  const fs::path folder = scratch("left");
  fs::remove_all(folder);
  fs::create_directories(folder / "model.unfinished-folder");
  for (const char* name : {"model.unfinished-ab12cd", "x.unfinished-zzzzzz", "model.unfinished-short",
                           "model.unfinished-AB12CD", "model", "unfinished-ab12cd"})
    std::ofstream(folder / name) << "text";
  remove_unfinished(folder);
  std::vector<std::string> there;
  for (const auto& entry : fs::directory_iterator(folder)) there.push_back(entry.path().filename().string());
  EXPECT_THAT(there, ::testing::UnorderedElementsAre("model.unfinished-folder", "model.unfinished-short",
                                                     "model.unfinished-AB12CD", "model", "unfinished-ab12cd"));
  remove_unfinished(folder / "none");
}

TEST(MappedFile, NoFileAFolderAndAnEmptyFile) {
  EXPECT_EQ(error_of([] { MappedFile file(scratch("nothing")); }), ENOENT);
  EXPECT_EQ(error_of([] { MappedFile file(fs::path(::testing::TempDir())); }), EISDIR);
  std::ofstream(scratch("empty")).flush();
  EXPECT_TRUE(MappedFile(scratch("empty")).bytes().empty());
}

}  // namespace
}  // namespace snug
