#include "snug/base/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/base/system_error.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUnfinished = ".unfinished-", kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
constexpr std::size_t kOwnLetters = 6;

std::string name_of_its_own(const fs::path& path) {
  std::random_device random;
  std::string name = path.string();
  name += kUnfinished;
  for (std::size_t i = 0; i < kOwnLetters; ++i) name.push_back(kLetters[random() % kLetters.size()]);
  return name;
}

/// Where a write to `path` goes, which need not be there yet: a link stays, and what it leads to is replaced.
fs::path behind_links(fs::path path) {
  constexpr int kMostLinks = 40;  // as many as the system follows
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(path, error)); ++links) {
    if (links == kMostLinks) throw_system_error(ELOOP);
    path = path.parent_path() / fs::read_symlink(path);
  }
  return path;
}

/// For what cannot be renamed over: a device, a pipe, a socket; and what this process prints to, of which the rest
/// would go to a file without a name. None for all others.
std::optional<int> open_in_place(const fs::path& path) {
  struct stat there {};
  if (::stat(path.c_str(), &there) != 0) return std::nullopt;
  if (S_ISDIR(there.st_mode)) throw_system_error(EISDIR);
  for (const int standard : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat printed {};
    const bool same =
        ::fstat(standard, &printed) == 0 && printed.st_dev == there.st_dev && printed.st_ino == there.st_ino;
    if (!same || (::fcntl(standard, F_GETFL) & O_ACCMODE) == O_RDONLY) continue;
    const int descriptor = ::fcntl(standard, F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0) throw_system_error(errno);
    return descriptor;
  }
  if (S_ISREG(there.st_mode)) return std::nullopt;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (descriptor < 0) throw_system_error(errno);
  return descriptor;
}

}  // namespace

DurableFile::DurableFile(fs::path path) : path_(std::move(path)), descriptor_(-1) {
  if (const auto in_place = open_in_place(path_)) {
    descriptor_ = *in_place;
    return;
  }
  path_ = behind_links(std::move(path_));
  // Not mkostemp, whose files are their owner's alone: the mask of the process cannot be read without changing it for
  // all threads.
  do {
    unfinished_ = name_of_its_own(path_);
    descriptor_ = ::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) throw_system_error(errno);
  struct stat replaced {};
  if (::stat(path_.c_str(), &replaced) == 0 && ::fchmod(descriptor_, replaced.st_mode & 07777U) != 0) {
    const int error = errno;
    ::close(descriptor_);
    ::unlink(unfinished_.c_str());
    throw_system_error(error);
  }
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!unfinished_.empty()) ::unlink(unfinished_.c_str());
}

void DurableFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      throw_system_error(errno);
    }
  }
}

void DurableFile::finish() {
  if (unfinished_.empty()) {
    if (::close(std::exchange(descriptor_, -1)) != 0) throw_system_error(errno);
    return;
  }
  if (::fsync(descriptor_) != 0) throw_system_error(errno);
  // Some file systems tell only here that the bytes did not fit.
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0 || ::rename(unfinished_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(unfinished_.c_str());
    throw_system_error(error);
  }
  sync_folder(path_.parent_path());
}

void remove_unfinished(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() <= kOwnLetters) continue;
    const std::string_view before = std::string_view(name).substr(0, name.size() - kOwnLetters);
    const bool own = name.find_first_not_of(kLetters, before.size()) == std::string::npos;
    if (own && before.ends_with(kUnfinished) && entry.is_regular_file(error)) left.push_back(entry.path());
  }
  for (const fs::path& path : left) fs::remove(path, error);
}

void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_system_error(errno);
  const int failed = ::fsync(descriptor) != 0 ? errno : 0;
  ::close(descriptor);
  // Not every file system knows this of a folder.
  if (failed != 0 && failed != EINVAL) throw_system_error(failed);
}

}  // namespace snug
