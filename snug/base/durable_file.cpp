#include "snug/base/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace snug {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(int error) { throw std::system_error(error, std::generic_category()); }

/// Of the file that is replaced, else what a new one gets.
mode_t mode_for(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status.st_mode & 07777U;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666U & ~mask;
}

}  // namespace

DurableFile::DurableFile(fs::path path)
    : path_(std::move(path)),
      unfinished_(path_.string() + ".unfinished-XXXXXX"),
      descriptor_(::mkostemp(unfinished_.data(), O_CLOEXEC)) {
  if (descriptor_ < 0) fail(errno);
  if (::fchmod(descriptor_, mode_for(path_)) != 0) {
    const int error = errno;
    ::close(descriptor_);
    ::unlink(unfinished_.c_str());
    fail(error);
  }
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(unfinished_.c_str());
}

void DurableFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

void DurableFile::finish() {
  if (::fsync(descriptor_) != 0) fail(errno);
  // Some file systems tell only here that the bytes did not fit.
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0 || ::rename(unfinished_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(unfinished_.c_str());
    fail(error);
  }
  sync_folder(path_.parent_path());
}

void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(errno);
  const int failed = ::fsync(descriptor) != 0 ? errno : 0;
  ::close(descriptor);
  // Not every file system knows this of a folder.
  if (failed != 0 && failed != EINVAL) fail(failed);
}

}  // namespace snug
