#include "snug/base/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

namespace snug {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(int error) { throw std::system_error(error, std::generic_category()); }

std::string name_of_its_own(const fs::path& path) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  std::string name = path.string() + ".unfinished-";
  for (int i = 0; i < 6; ++i) name.push_back(kLetters[random() % kLetters.size()]);
  return name;
}

}  // namespace

DurableFile::DurableFile(fs::path path) : path_(std::move(path)), descriptor_(-1) {
  // Not mkostemp, whose files are their owner's alone: the mask of the process cannot be read without changing it for
  // all threads.
  do {
    unfinished_ = name_of_its_own(path_);
    descriptor_ = ::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail(errno);
  struct stat replaced {};
  if (::stat(path_.c_str(), &replaced) == 0 && ::fchmod(descriptor_, replaced.st_mode & 07777U) != 0) {
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
