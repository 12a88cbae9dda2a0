#include "snug/base/file_hash.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <system_error>

#include "snug/base/hash.h"
#include "snug/base/text_file.h"
#include "tests/base/scratch.h"

namespace snug {
namespace {

TEST(FileHash, IsThatOfAllBytesWhateverTheLength) {
  const auto path = testing::scratch("file_hash") / "file";
  for (const std::size_t length : {0U, 1U, 240U, 4U << 20, (4U << 20) + 1, 9U << 20}) {
    std::string text(length, '\0');
    for (std::size_t i = 0; i < length; ++i) text[i] = static_cast<char>(i * 2654435761U >> 13);
    write_text(path, text);
    const FileHash found = file_hash(path);
    EXPECT_EQ(found.bytes, length);
    EXPECT_EQ(found.hash, hash_128(std::as_bytes(std::span(text)))) << length;
  }
  std::filesystem::remove(path);
  EXPECT_THROW((void)file_hash(path), std::system_error);
}

}  // namespace
}  // namespace snug
