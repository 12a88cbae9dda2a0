#include "snug/memory/block_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "snug/base/errors.h"

namespace snug::memory {
namespace {

[[noreturn]] void fail(int error, const char* what) { throw std::system_error(error, std::generic_category(), what); }

class UnnamedFile final : public BlockFile {
 public:
  UnnamedFile() {
    const char* const folder = std::getenv("TMPDIR");
    folder_ = folder != nullptr && *folder != '\0' ? folder : "/tmp";
    file_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file_ >= 0) return;
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
    while (!contents.empty()) {
      const ssize_t count = ::pwrite(file_, contents.data(), contents.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail(count < 0 ? errno : ENOSPC, "pwrite");
      contents = contents.subspan(static_cast<std::size_t>(count));
      offset += count;
    }
  }
  void read(Bytes offset, std::span<std::byte> contents) override {
    while (!contents.empty()) {
      const ssize_t count = ::pread(file_, contents.data(), contents.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail(count < 0 ? errno : EIO, "pread");
      contents = contents.subspan(static_cast<std::size_t>(count));
      offset += count;
    }
  }
  void cut_off(Bytes size) noexcept override {
    if (::ftruncate(file_, static_cast<off_t>(size)) != 0) return;  // it is longer than it has to be
  }
  [[nodiscard]] std::string where() const override { return folder_; }

 private:
  std::string folder_;
  int file_ = -1;
};

}  // namespace

std::unique_ptr<BlockFile> unnamed_file() { return std::make_unique<UnnamedFile>(); }

}  // namespace snug::memory
