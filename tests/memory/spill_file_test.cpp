#include "snug/memory/spill_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <random>
#include <system_error>
#include <vector>

#include "snug/base/errors.h"

namespace snug::memory {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// From the beginning of a page, so that the disk takes no page for how it lies.
template <class T>
struct AtAPage {
  using value_type = T;
  static constexpr std::align_val_t kPage{static_cast<std::size_t>(BlockFile::kPage)};
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kPage)); }
  void deallocate(T* first, std::size_t /*count*/) { ::operator delete(first, kPage); }
  friend bool operator==(AtAPage, AtAPage) { return true; }
};
using Contents = std::vector<std::byte, AtAPage<std::byte>>;

Contents pattern(std::size_t size, int from) {
  Contents bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(from + static_cast<int>(i));
  return bytes;
}

Contents read(const SpillFile& file, const SpillFile::Block& block) {
  Contents bytes(static_cast<std::size_t>(block.bytes()));
  file.read(block, bytes);
  return bytes;
}

/// A disk in memory, with what is to happen at each access.
class Disk final : public BlockFile {
 public:
  explicit Disk(std::function<void(Bytes, std::span<std::byte>)> at_access = {}) : at_access_(std::move(at_access)) {}
  void write(Bytes offset, std::span<const std::byte> contents) override {
    ++accesses;
    if (at_access_) at_access_(offset, {});
    const auto end = static_cast<std::size_t>(offset) + contents.size();
    if (bytes_.size() < end) bytes_.resize(end);
    std::ranges::copy(contents, bytes_.begin() + offset);
  }
  void read(Bytes offset, std::span<std::byte> contents) override {
    ++accesses;
    std::memcpy(contents.data(), bytes_.data() + offset, contents.size());
    if (at_access_) at_access_(offset, contents);
  }
  void cut_off(Bytes size) noexcept override { bytes_.resize(std::min(bytes_.size(), static_cast<std::size_t>(size))); }
  [[nodiscard]] std::string where() const override { return "a test"; }

  int accesses = 0;

 private:
  std::function<void(Bytes, std::span<std::byte>)> at_access_;
  std::vector<std::byte> bytes_;
};

[[noreturn]] void fail_with(int error) { throw std::system_error(error, std::generic_category()); }

TEST(SpillFile, GivesBackWhatWasWritten) {
  SpillFile file;
  const auto first = pattern(100000, 1), second = pattern(7, 200);
  const SpillFile::Block one = file.write(first), two = file.write(second), none = file.write({});
  EXPECT_EQ(read(file, one), first);
  EXPECT_EQ(read(file, two), second);
  EXPECT_TRUE(read(file, none).empty());
  EXPECT_EQ(file.stats().taken, 25 * 4096 + 4096);
}

/// Whole pages past the page cache, and what lies otherwise by way of other pages.
TEST(SpillFile, GivesBackContentsThatLieInAnyWay) {
  SpillFile file;
  constexpr std::size_t kSizes[] = {1, 4032, 4096, 4097, 9000, (1U << 20U) + 100, (3U << 20U) - 64};
  for (const std::size_t size : kSizes) {
    const Contents all = pattern(size + 5000, static_cast<int>(size));
    for (const std::size_t written_at : {0U, 64U, 4095U}) {
      const std::span contents = std::span(all).subspan(written_at, size);
      const SpillFile::Block block = file.write(contents);
      for (const std::size_t read_at : {0U, 64U, 100U}) {
        Contents back(size + 200, std::byte{7});
        file.read(block, std::span(back).subspan(read_at, size));
        ASSERT_TRUE(std::ranges::equal(std::span(back).subspan(read_at, size), contents))
            << size << " written at " << written_at << ", read at " << read_at;
        EXPECT_TRUE(std::ranges::all_of(std::span(back).first(read_at), [](std::byte b) { return b == std::byte{7}; }));
        EXPECT_TRUE(std::ranges::all_of(std::span(back).subspan(read_at + size),
                                        [](std::byte b) { return b == std::byte{7}; }));
      }
    }
  }
}

TEST(SpillFile, UsesRoomAgain) {
  SpillFile file;
  for (int step = 0; step < 50; ++step) {
    std::vector<SpillFile::Block> blocks;
    for (int i = 1; i <= 10; ++i) blocks.push_back(file.write(pattern(static_cast<std::size_t>(i) * 5000, step + i)));
    std::ranges::rotate(blocks, blocks.begin() + step % 10);
    for (const SpillFile::Block& block : blocks)
      EXPECT_EQ(read(file, block),
                pattern(static_cast<std::size_t>(block.bytes()), step + static_cast<int>(block.bytes() / 5000)));
  }
  const TierStats stats = file.stats();
  EXPECT_EQ(stats.taken, 0);
  EXPECT_EQ(stats.held, stats.taken_peak) << "no step takes more than the first";
}

TEST(SpillFile, KeepsBlocksApartInAnyOrder) {
  SpillFile file(std::make_unique<Disk>());
  std::mt19937 random(1);
  std::vector<std::pair<SpillFile::Block, int>> blocks;
  for (int i = 0; i < 3000; ++i) {
    if (blocks.size() < 3 || random() % 2 == 0) {
      const auto size = static_cast<std::size_t>(random() % 30000 + 1);
      blocks.emplace_back(file.write(pattern(size, i)), i);
    } else {
      const std::size_t which = random() % blocks.size();
      ASSERT_EQ(read(file, blocks[which].first),
                pattern(static_cast<std::size_t>(blocks[which].first.bytes()), blocks[which].second));
      std::swap(blocks[which], blocks.back());
      blocks.pop_back();
    }
  }
  blocks.clear();
  EXPECT_EQ(file.stats().taken, 0);
}

TEST(SpillFile, HasABudget) {
  SpillFile file(std::make_unique<Disk>(), 3 * 4096);
  std::optional<SpillFile::Block> first = file.write(pattern(8000, 1));
  EXPECT_THAT([&] { (void)file.write(pattern(5000, 1)); },
              ThrowsMessage<Error>(HasSubstr("budget of 12.0 KiB 8.0 KiB are taken")));
  const SpillFile::Block small = file.write(pattern(4096, 2));
  first.reset();
  EXPECT_NO_THROW((void)file.write(pattern(5000, 1)));
  EXPECT_EQ(read(file, small), pattern(4096, 2));
  EXPECT_EQ(file.stats().budget, 3 * 4096);
}

TEST(SpillFile, LeavesNoNameBehind) {
  const auto folder = std::filesystem::temp_directory_path() / "snug-spill-test";
  std::filesystem::create_directories(folder);
  ::setenv("TMPDIR", folder.c_str(), 1);
  {
    SpillFile file;
    const SpillFile::Block block = file.write(pattern(10, 0));
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  ::unsetenv("TMPDIR");
  std::filesystem::remove_all(folder);
}

TEST(SpillFile, NamesAFolderThatIsNotThere) {
  ::setenv("TMPDIR", "/no/such/folder", 1);
  EXPECT_THAT([] { const SpillFile file; }, ThrowsMessage<Error>(HasSubstr("/no/such/folder")));
  ::unsetenv("TMPDIR");
}

/// A limit on the size of files stands for a full disk.
TEST(SpillFile, IsAsBeforeWhenThereIsNoRoom) {
  SpillFile file;
  const auto first = pattern(1000, 1);
  const SpillFile::Block there = file.write(first);
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, &before);
  rlimit limit{}, small{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  small = {5000, limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW((void)file.write(pattern(8000, 3)), Error);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::sigaction(SIGXFSZ, &before, nullptr);
  EXPECT_EQ(file.stats().taken, 4096);
  EXPECT_EQ(read(file, there), first);
  const auto again = pattern(8000, 4);
  EXPECT_EQ(read(file, file.write(again)), again);
}

TEST(SpillFile, TriesOnceMoreWhenTheMediumFails) {
  for (const int failures : {1, 2, 3}) {
    int left = failures;
    SpillFile file(std::make_unique<Disk>([&](Bytes, std::span<std::byte>) {
      if (left > 0 && left-- > 0) fail_with(EIO);
    }));
    const auto write = [&] { return file.write(pattern(100, 1)); };
    if (failures < 3) {
      EXPECT_EQ(read(file, write()), pattern(100, 1));
    } else {
      EXPECT_THAT(write,
                  ThrowsMessage<Error>(HasSubstr("writing 100 B of a temporary file in a test: Input/output error")));
      EXPECT_EQ(file.stats().taken, 0);
    }
  }
}

TEST(SpillFile, AFullDiskIsNotAskedAgain) {
  auto disk = std::make_unique<Disk>([](Bytes, std::span<std::byte>) { fail_with(ENOSPC); });
  const Disk& seen = *disk;
  SpillFile file(std::move(disk));
  EXPECT_THAT([&] { (void)file.write(pattern(100, 1)); }, ThrowsMessage<Error>(HasSubstr("No space left")));
  EXPECT_EQ(seen.accesses, 1);
}

/// Any flipped bit, wherever it is.
TEST(SpillFile, RefusesWhatIsNotWhatWasWritten) {
  for (int bit = 0; bit < 200; ++bit) {
    int flips = bit % 4;  // of the reads, the first so many
    const bool is_read_right = flips < 3;
    SpillFile file(std::make_unique<Disk>([&](Bytes, std::span<std::byte> read) {
      if (!read.empty() && flips-- > 0) read[static_cast<std::size_t>(bit) % read.size()] ^= std::byte(1 << bit % 8);
    }));
    const SpillFile::Block block = file.write(pattern(150, bit));
    if (is_read_right) {
      EXPECT_EQ(read(file, block), pattern(150, bit));
    } else {
      EXPECT_THAT([&] { (void)read(file, block); }, ThrowsMessage<Error>(HasSubstr("another checksum")));
    }
  }
}

}  // namespace
}  // namespace snug::memory
