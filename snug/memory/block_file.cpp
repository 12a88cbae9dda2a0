#include "snug/memory/block_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/piece_io.h"

namespace snug::memory {
namespace {

constexpr Bytes kLargestPiece = 1_MiB;

/// Whole pages of memory that are nobody else's.
class Pages {
 public:
  explicit Pages(Bytes bytes)
      : bytes_(static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), kAligned))) {}
  ~Pages() { ::operator delete(bytes_, kAligned); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  [[nodiscard]] std::byte* begin() const noexcept { return bytes_; }

 private:
  static constexpr std::align_val_t kAligned{static_cast<std::size_t>(BlockFile::kPage)};
  std::byte* bytes_;
};

/// A range of a file and of memory as pieces of whole pages: what is not a whole page of both goes by way of another
/// one.
class InPieces {
 public:
  InPieces(Bytes offset, std::span<std::byte> contents, Way way) : way_(way) {
    const auto address = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(contents.data()));
    const bool lies_so = (address - offset) % BlockFile::kPage == 0;
    const Bytes end = offset + std::ssize(contents);
    while (offset < end) {
      const Bytes within = offset % BlockFile::kPage;
      const bool whole = lies_so && within == 0 && end - offset >= BlockFile::kPage;
      const Bytes most = whole     ? std::min((end - offset) / BlockFile::kPage * BlockFile::kPage, kLargestPiece)
                         : lies_so ? BlockFile::kPage - within
                                   : kLargestPiece - within;
      const auto part = contents.first(static_cast<std::size_t>(std::min(most, end - offset)));
      if (whole) {
        add(offset, part);
      } else {
        add_detour(offset - within, part, within);
      }
      contents = contents.subspan(part.size());
      offset += std::ssize(part);
    }
  }
  [[nodiscard]] std::span<const Piece> all() const noexcept { return pieces_; }
  /// They have been read, or written.
  void done() const {
    if (way_ == Way::ToFile) return;
    for (const Detour& d : detours_) std::memcpy(d.contents.data(), d.pages->begin() + d.within, d.contents.size());
  }

 private:
  struct Detour {
    std::unique_ptr<Pages> pages;
    std::span<std::byte> contents;
    Bytes within;
  };
  /// Behind the last piece, or with it: whole pages.
  void add(Bytes offset, std::span<std::byte> pages) {
    const iovec part{pages.data(), pages.size()};
    if (!pieces_.empty() && pieces_.back().length() + std::ssize(pages) <= kLargestPiece + 2 * BlockFile::kPage) {
      pieces_.back().memory.push_back(part);
    } else {
      pieces_.push_back({offset, {part}});
    }
  }
  void add_detour(Bytes page, std::span<std::byte> contents, Bytes within) {
    const Bytes length = (within + std::ssize(contents) + BlockFile::kPage - 1) / BlockFile::kPage * BlockFile::kPage;
    const Detour& d = detours_.emplace_back(Detour{std::make_unique<Pages>(length), contents, within});
    if (way_ == Way::ToFile) std::memcpy(d.pages->begin() + within, contents.data(), contents.size());
    add(page, {d.pages->begin(), static_cast<std::size_t>(length)});
  }

  Way way_;
  std::vector<Piece> pieces_;
  std::vector<Detour> detours_;
};

class UnnamedFile final : public BlockFile {
 public:
  UnnamedFile() {
    for (const int direct : {O_DIRECT, 0}) {
      file_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | direct, S_IRUSR | S_IWUSR);
      if (file_ >= 0) return;
    }
    // Not every file system has files without a name.
    std::string name = folder_ + "/snug-XXXXXX";
    file_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0) {
      throw Error(
          fmt::format("offload: cannot make a temporary file in {}: {}; set TMPDIR to a folder on a disk with room",
                      folder_, std::generic_category().message(errno)));
    }
    ::unlink(name.c_str());
  }
  ~UnnamedFile() override { ::close(file_); }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;

  void write(Bytes offset, std::span<const std::byte> contents) override {
    // It is not written to by what writes it to a file.
    transfer(Way::ToFile, offset, {const_cast<std::byte*>(contents.data()), contents.size()});  // NOLINT(*-const-cast)
  }
  void read(Bytes offset, std::span<std::byte> contents) override { transfer(Way::FromFile, offset, contents); }
  void cut_off(Bytes size) noexcept override {
    if (::ftruncate(file_, static_cast<off_t>(size)) != 0) return;  // it is longer than it has to be
  }
  [[nodiscard]] std::string where() const override { return folder_; }

 private:
  void transfer(Way way, Bytes offset, std::span<std::byte> contents) {
    InPieces pieces(offset, contents, way);
    std::unique_ptr<PieceIo> io = take_io();
    io->transfer(file_, way, pieces.all());
    pieces.done();
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(io));
  }
  std::unique_ptr<PieceIo> take_io() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return piece_io();
    std::unique_ptr<PieceIo> io = std::move(idle_.back());
    idle_.pop_back();
    return io;
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<PieceIo>> idle_;
  std::string folder_ = folder_of_unnamed_files();
  int file_ = -1;
};

}  // namespace

std::string folder_of_unnamed_files() {
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

bool is_in_memory(const std::string& folder) {
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) != 0) return false;
  return system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
}

std::unique_ptr<BlockFile> unnamed_file() { return std::make_unique<UnnamedFile>(); }

}  // namespace snug::memory
