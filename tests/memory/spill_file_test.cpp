#include "snug/memory/spill_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

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
#include "snug/memory/piece_io.h"
#include "tests/memory/disk_in_memory.h"

namespace snug::memory {
namespace {

using snug::testing::Access;
using snug::testing::DiskInMemory;
using snug::testing::fail_with;
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
  SpillFile file(std::make_unique<DiskInMemory>());
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
  SpillFile file(std::make_unique<DiskInMemory>(), 3 * 4096);
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

/// At any moment: as the file has no name, there is nothing that anybody would have to remove.
TEST(SpillFile, LeavesNothingBehindWhenItIsKilled) {
  const auto folder = std::filesystem::temp_directory_path() / "snug-killed-test";
  std::filesystem::create_directories(folder);
  ::setenv("TMPDIR", folder.c_str(), 1);
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int k = 0;; ++k) {
        SpillFile file;
        const SpillFile::Block block = file.write(pattern(300'000, k));
        (void)read(file, block);
      }
    }
    ::usleep(random() % 8000);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ASSERT_TRUE(std::filesystem::is_empty(folder)) << i;
  }
  ::unsetenv("TMPDIR");
  std::filesystem::remove_all(folder);
}

TEST(SpillFile, IsReadByAForkedProcessBesideTheOneThatItComesOf) {
  SpillFile file;
  const SpillFile::Block block = file.write(pattern(300'000, 5));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(read(file, block) == pattern(300'000, 5) ? 0 : 1);
  ::alarm(60);  // what the other one had taken would never come
  EXPECT_EQ(read(file, block), pattern(300'000, 5));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(file, block), pattern(300'000, 5));
  ::alarm(0);
}

/// Each way that a kernel may have, with more pieces than are under way at once.
TEST(PieceIo, MovesAllPiecesByARingAndByThreads) {
  constexpr std::size_t kPieces = 70, kLength = 3 * 4096;
  for (auto* const make : {&uring_io, &threaded_io}) {
    const std::unique_ptr<PieceIo> io = make();
    if (!io) continue;  // the kernel has none
    const int file = ::open("/tmp", O_TMPFILE | O_RDWR | O_DIRECT, S_IRUSR | S_IWUSR);
    ASSERT_GE(file, 0);
    Contents out(kPieces * kLength), back(kPieces * kLength);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i / 512 * 7 + i);
    const auto parts_of = [](std::byte* first) {
      return std::vector<iovec>{{first, 4096}, {first + 4096, kLength - 4096}};
    };
    const auto pieces_of = [&](Contents& all) {
      std::vector<Piece> pieces;
      for (std::size_t i = 0; i < kPieces; ++i)  // the last first
        pieces.push_back(
            {static_cast<Bytes>((kPieces - 1 - i) * kLength), parts_of(all.data() + (kPieces - 1 - i) * kLength)});
      return pieces;
    };
    io->transfer(file, Way::ToFile, pieces_of(out));
    io->transfer(file, Way::FromFile, pieces_of(back));
    EXPECT_EQ(out, back);
    ::close(file);
    const int only_read = ::open("/proc/self/exe", O_RDONLY);
    EXPECT_THROW(io->transfer(only_read, Way::ToFile, pieces_of(out)), std::system_error);
    ::close(only_read);
  }
}

TEST(PieceIo, WhatIsLeftOfAPieceIsBehindIt) {
  Contents pages(4 * 4096);
  Piece piece{8192, {{pages.data(), 4096}, {pages.data() + 8192, 8192}}};
  EXPECT_EQ(piece.length(), 3 * 4096);
  piece.skip(0);
  EXPECT_EQ(piece.length(), 3 * 4096);
  piece.skip(5000);
  EXPECT_EQ(piece.offset, 8192 + 5000);
  ASSERT_EQ(piece.memory.size(), 1U);
  EXPECT_EQ(piece.memory.front().iov_base, pages.data() + 8192 + 904);
  EXPECT_EQ(piece.length(), 3 * 4096 - 5000);
  piece.skip(piece.length());
  EXPECT_TRUE(piece.memory.empty());
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
    SpillFile file(std::make_unique<DiskInMemory>([&](Access, std::span<std::byte>) {
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
  auto disk = std::make_unique<DiskInMemory>([](Access, std::span<std::byte>) { fail_with(ENOSPC); });
  const DiskInMemory& seen = *disk;
  SpillFile file(std::move(disk));
  EXPECT_THAT([&] { (void)file.write(pattern(100, 1)); }, ThrowsMessage<Error>(HasSubstr("No space left")));
  EXPECT_EQ(seen.accesses, 1);
}

/// Any flipped bit, wherever it is.
TEST(SpillFile, RefusesWhatIsNotWhatWasWritten) {
  for (int bit = 0; bit < 200; ++bit) {
    int flips = bit % 4;  // of the reads, the first so many
    const bool is_read_right = flips < 3;
    SpillFile file(std::make_unique<DiskInMemory>([&](Access, std::span<std::byte> read) {
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

/// One after the other or several in a row, each compared with what was written there; damage elsewhere is no matter.
TEST(SpillFile, ReadsPartsAlone) {
  constexpr Bytes kPart = SpillFile::kPart, kBytes = 2 * kPart + 5000;
  Bytes damaged = -1;  // which read is
  SpillFile file(std::make_unique<DiskInMemory>([&](Access access, std::span<std::byte> bytes) {
    if (access == Access::Read && std::ssize(bytes) == damaged) bytes[7] ^= std::byte{1};
  }));
  const Contents all = pattern(kBytes, 3);
  const SpillFile::Block block = file.write(all);
  const auto part = [&](Bytes from, Bytes count) {
    Contents bytes(static_cast<std::size_t>(count));
    file.read_part(block, from, bytes);
    return std::ranges::equal(bytes, std::span(all).subspan(static_cast<std::size_t>(from), bytes.size()));
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(part(0, kPart));
    EXPECT_TRUE(part(kPart, kPart));
    EXPECT_TRUE(part(kPart, kBytes - kPart));
    if (i == 0) {
      EXPECT_TRUE(part(2 * kPart, 5000));
    } else {
      EXPECT_THAT([&] { (void)part(2 * kPart, 5000); }, ThrowsMessage<Error>(HasSubstr("another checksum")));
    }
    damaged = 5000;
  }
  EXPECT_TRUE(std::ranges::equal(read(file, block), all));
}

}  // namespace
}  // namespace snug::memory
