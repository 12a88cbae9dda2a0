// DurableFile and MappedFile: whole or not at all, and writes that do not reach the file.
#include "snug/base/durable_file.h"

#include <gtest/gtest.h>

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
  EXPECT_FALSE(fs::exists(path.string() + ".unfinished"));
}

TEST(DurableFile, AFullDiskIsAnErrorAndLeavesWhatWasThere) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const fs::path path = scratch("full");
  std::ofstream(path) << "before";
  fs::remove(path.string() + ".unfinished");
  fs::create_symlink("/dev/full", path.string() + ".unfinished");  // every write to it finds the disk full
  EXPECT_EQ(error_of([&] {
              DurableFile file(path);
              write(file, "more than there is room for");
              file.finish();
            }),
            ENOSPC);
  EXPECT_EQ(contents(path), "before");
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
