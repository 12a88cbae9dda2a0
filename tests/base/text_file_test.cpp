#include "snug/base/text_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <system_error>

namespace snug {
namespace {

std::filesystem::path temporary(const char* name) {
  return std::filesystem::temp_directory_path() / (std::string(name) + std::to_string(::getpid()));
}

std::error_code reason(const std::filesystem::path& path) {
  try {
    (void)read_text(path);
  } catch (const std::system_error& error) {
    return error.code();
  }
  return {};
}

TEST(TextFile, ReadsTheBytesThatWereWritten) {
  const std::filesystem::path path = temporary("snug_text");
  const std::string text("a\r\n\0\xff", 5);
  write_text(path, text);
  EXPECT_EQ(read_text(path), text);
  write_text(path, "");
  EXPECT_EQ(read_text(path), "");
  std::filesystem::remove(path);
}

TEST(TextFile, ReadsNoMoreThanItMay) {
  const std::filesystem::path path = temporary("snug_limit");
  write_text(path, "12345");
  EXPECT_EQ(read_text(path, 5), "12345");
  const auto refusal = [](const std::filesystem::path& read, std::size_t most) {
    try {
      (void)read_text(read, most);
    } catch (const std::system_error& error) {
      return error.code();
    }
    return std::error_code();
  };
  EXPECT_EQ(refusal(path, 4), std::errc::file_too_large);
  EXPECT_EQ(refusal("/dev/zero", 1 << 20), std::errc::file_too_large);
  std::filesystem::remove(path);
}

TEST(TextFile, SaysWhyItCannotBeReadOrWritten) {
  EXPECT_EQ(reason(temporary("snug_not_there")), std::errc::no_such_file_or_directory);
  EXPECT_EQ(reason(std::filesystem::temp_directory_path()), std::errc::is_a_directory);
  EXPECT_THROW(write_text(temporary("snug_no_folder") / "a", "b"), std::system_error);
}

}  // namespace
}  // namespace snug
