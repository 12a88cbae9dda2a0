#include "snug/data/text_corpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

namespace fs = std::filesystem;

class TextCorpusTest : public ::testing::Test {
 protected:
  TextCorpusTest() { fs::create_directories(folder_); }
  ~TextCorpusTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  [[nodiscard]] const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_ = fs::path(::testing::TempDir()) / ("snug_corpus_" + std::to_string(::getpid()) + "_" +
                                                       ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

std::string bytes_at(const TextCorpus& corpus, Bytes offset, std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  corpus.copy(offset, bytes);
  return {bytes.begin(), bytes.end()};
}
std::string all_bytes(const TextCorpus& corpus) { return bytes_at(corpus, 0, static_cast<std::size_t>(corpus.size())); }

std::string refusal_of(const fs::path& path) {
  try {
    TextCorpus::open(path);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(TextCorpusTest, SaysSoWhereAFileHasBecomeShorter) {
  const auto refused = [](const TextCorpus& corpus, Bytes offset, std::size_t count) {
    try {
      (void)bytes_at(corpus, offset, count);
    } catch (const Error& error) {
      return std::string(error.what()).find("b.txt: it has become shorter") != std::string::npos;
    }
    return false;
  };
  write("a.txt", std::string(10'000, 'a'));
  const fs::path path = write("b.txt", std::string(20'000, 'b'));
  const TextCorpus corpus = TextCorpus::open(folder());
  fs::resize_file(path, 19'000);
  EXPECT_TRUE(refused(corpus, 29'500, 100)) << "where the last page has zeros";
  fs::resize_file(path, 0);
  EXPECT_TRUE(refused(corpus, 9'990, 100));
  EXPECT_EQ(bytes_at(corpus, 0, 10), "aaaaaaaaaa");
  // A new file under the name leaves the one that is open as it is.
  fs::remove(path);
  write("b.txt", std::string(20'000, 'b'));
  const TextCorpus of_new = TextCorpus::open(folder());
  write("new", "c");
  fs::rename(folder() / "new", path);
  EXPECT_EQ(bytes_at(of_new, 29'990, 10), "bbbbbbbbbb");
}

TEST_F(TextCorpusTest, MapsOneFile) {
  const TextCorpus corpus = TextCorpus::open(write("a.txt", "hello"));
  EXPECT_EQ(corpus.size(), 5);
  EXPECT_EQ(corpus.files(), 1U);
  EXPECT_EQ(all_bytes(corpus), "hello");
}

TEST_F(TextCorpusTest, JoinsTheFilesOfAFolderInTheOrderOfTheirPaths) {
  write("c.txt", "third");
  write("b/z.txt", "second");
  write("a.txt", "first");
  const TextCorpus corpus = TextCorpus::open(folder());
  EXPECT_EQ(corpus.files(), 3U);
  EXPECT_EQ(all_bytes(corpus), "firstsecondthird");
}

TEST_F(TextCorpusTest, ReadsAcrossFileBoundariesFromAnyOffset) {
  write("1", "ab");
  write("2", "c");
  write("3", "defg");
  const TextCorpus corpus = TextCorpus::open(folder());
  const std::string text = "abcdefg";
  for (std::size_t offset = 0; offset <= text.size(); ++offset) {
    for (std::size_t count = 0; offset + count <= text.size(); ++count) {
      EXPECT_EQ(bytes_at(corpus, static_cast<Bytes>(offset), count), text.substr(offset, count));
    }
  }
}

TEST_F(TextCorpusTest, RefusesToReadOutsideTheText) {
  const TextCorpus corpus = TextCorpus::open(write("a.txt", "hello"));
  std::vector<std::uint8_t> out(3);
  EXPECT_THROW(corpus.copy(3, out), Error);
  EXPECT_THROW(corpus.copy(-1, out), Error);
  EXPECT_THROW(corpus.copy(std::numeric_limits<Bytes>::max(), out), Error);
}

TEST_F(TextCorpusTest, SkipsBinaryAndEmptyFilesInAFolder) {
  write("a.txt", "text");
  write("binary", std::string("ELF\0\1", 5));
  write("empty", "");
  write("nul_at_4095", std::string(4095, 'x') + std::string(1, '\0'));
  const TextCorpus corpus = TextCorpus::open(folder());
  EXPECT_EQ(corpus.files(), 1U);
  EXPECT_EQ(all_bytes(corpus), "text");
}

TEST_F(TextCorpusTest, LooksForNulInTheFirst4096BytesOnly) {
  write("late_nul", std::string(4096, 'x') + std::string(1, '\0'));
  EXPECT_EQ(TextCorpus::open(folder()).size(), 4097);
}

TEST_F(TextCorpusTest, RefusesANamedFileThatIsNoTextByItsFormat) {
  const std::string wide_letters("h\0e\0l\0l\0o\0 \0w\0o\0r\0l\0d\0\n\0", 24);
  for (const auto& [contents, format] :
       std::vector<std::pair<std::string, std::string>>{{std::string("a\0b", 3), "binary"},
                                                        {"\x1F\x8B\x08 and more", "gzip"},
                                                        {"PAR1 and more", "Parquet"},
                                                        {"\xFF\xFE" + wide_letters, "UTF-16 text"},
                                                        {wide_letters, "UTF-16 text"},
                                                        {std::string("\x40\0\0\0\0\0\0\0{\"a\"", 12), "safetensors"},
                                                        {std::string(257, 'x') + "ustar", "tar"},
                                                        {"%PDF-1.7", "PDF"}}) {
    EXPECT_NE(refusal_of(write("file", contents)).find("the file is " + format), std::string::npos) << format;
  }
  for (const char* const text : {"PAR", "BZ", "%PDF", "hello {\"a\": 1}", "12345678{\"a\": 1}"})
    EXPECT_EQ(all_bytes(TextCorpus::open(write("file", text))), text);
}

TEST_F(TextCorpusTest, TellsWhatItLeavesOutOfAFolder) {
  write("a.txt", "text");
  EXPECT_EQ(TextCorpus::open(folder()).left_out(), "");
  write("b/c.gz", "\x1F\x8B\x08");
  write("d.npy", "\x93NUMPY");
  write(".git/config", "no data");
  write(".hidden", "no data");
  write("empty", "");
  const TextCorpus corpus = TextCorpus::open(folder());
  EXPECT_EQ(all_bytes(corpus), "text");
  EXPECT_EQ(corpus.left_out(), "2 of 4 files: not text (first: b/c.gz, gzip); 2 whose names begin with a dot");
}

TEST_F(TextCorpusTest, SurvivesLinksThatLoopOrDangle) {
  write("sub/a.txt", "text");
  fs::create_directory_symlink(folder(), folder() / "sub/up");
  fs::create_symlink(folder() / "self", folder() / "self");
  fs::create_symlink(folder() / "nothing", folder() / "dangling");
  EXPECT_EQ(all_bytes(TextCorpus::open(folder())), "text");
}

TEST_F(TextCorpusTest, SaysWhatIsWrongWithAPath) {
  EXPECT_NE(refusal_of(folder() / "none").find("none: No such file or directory; set data.path"), std::string::npos);
  EXPECT_NE(refusal_of("").find("no path is given; set data.path"), std::string::npos);
  EXPECT_NE(refusal_of(write("empty", "")).find("the file is empty"), std::string::npos);
  EXPECT_NE(refusal_of("/dev/null").find("/dev/null: neither a file nor a folder"), std::string::npos);
  EXPECT_NE(refusal_of(folder()).find("none of the 1 files under this folder has text"), std::string::npos);
}

TEST_F(TextCorpusTest, NamesAFileThatMayNotBeRead) {
  const fs::path path = write("secret", "text");
  fs::permissions(path, fs::perms::none);
  // Root reads everything: look as nobody.
  constexpr ::uid_t kNobody = 65534;
  const ::uid_t user = ::geteuid();
  if (user == 0) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const std::string refusal = refusal_of(folder());
  if (user == 0) {
    ASSERT_EQ(::seteuid(user), 0);
  }
  EXPECT_NE(refusal.find("secret: Permission denied"), std::string::npos) << refusal;
}

TEST_F(TextCorpusTest, MovesItsMappings) {
  TextCorpus first = TextCorpus::open(write("a.txt", "first"));
  TextCorpus second = std::move(first);
  EXPECT_EQ(all_bytes(second), "first");
  second = TextCorpus::open(write("b.txt", "other"));
  EXPECT_EQ(all_bytes(second), "other");
}

TEST_F(TextCorpusTest, IsReadByManyThreadsAtOnce) {
  write("1", std::string(5000, 'a'));
  write("2", std::string(5000, 'b'));
  const TextCorpus corpus = TextCorpus::open(folder());
  const std::string expected = std::string(10, 'a') + std::string(10, 'b');
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) EXPECT_EQ(bytes_at(corpus, 4990, 20), expected);
    });
  }
}

}  // namespace
}  // namespace snug::data
