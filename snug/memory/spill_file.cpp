#include "snug/memory/spill_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "snug/base/errors.h"

namespace snug::memory {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& folder, int error) {
  throw Error(fmt::format("offload: {} a temporary file in {}: {}; set TMPDIR to a folder on a disk with room", what,
                          folder, std::generic_category().message(error)));
}

}  // namespace

SpillFile::SpillFile() {
  const char* folder = std::getenv("TMPDIR");
  folder_ = folder != nullptr && *folder != '\0' ? folder : "/tmp";
  file_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file_ >= 0) return;
  // Not every file system has files without a name.
  std::string name = folder_ + "/snug-XXXXXX";
  file_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (file_ < 0) fail("cannot make", folder_, errno);
  ::unlink(name.c_str());
}

SpillFile::~SpillFile() { ::close(file_); }

Bytes SpillFile::append(std::span<const std::byte> contents) {
  std::size_t done = 0;
  while (done < contents.size()) {
    const ssize_t written = ::pwrite(file_, contents.data() + done, contents.size() - done,
                                     static_cast<off_t>(size_) + static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      if (::ftruncate(file_, static_cast<off_t>(size_)) != 0) size_ += static_cast<Bytes>(done);
      fail(fmt::format("writing {} to", format_bytes(static_cast<Bytes>(contents.size()))), folder_, error);
    }
    done += static_cast<std::size_t>(written);
  }
  const Bytes offset = size_;
  size_ += static_cast<Bytes>(contents.size());
  return offset;
}

void SpillFile::read(Bytes offset, std::span<std::byte> contents) const {
  std::size_t done = 0;
  while (done < contents.size()) {
    const ssize_t count = ::pread(file_, contents.data() + done, contents.size() - done,
                                  static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("reading", folder_, count < 0 ? errno : EIO);
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace snug::memory
