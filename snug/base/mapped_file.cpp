#include "snug/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "snug/base/system_error.h"

namespace snug {
namespace {

/// Closes the descriptor: a mapping outlives it.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) throw_system_error(errno);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { ::close(descriptor_); }

  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path, Writes writes) : path_(path.string()), writes_(writes) {
  const OpenFile file(path);
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) throw_system_error(errno);
  if (S_ISDIR(status.st_mode)) throw_system_error(EISDIR);
  device_ = status.st_dev;
  number_ = status.st_ino;
  const auto size = static_cast<std::size_t>(status.st_size);
  // An empty range cannot be mapped.
  if (size == 0) return;
  const int protection = writes == Writes::Private ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const address = ::mmap(nullptr, size, protection, MAP_PRIVATE | MAP_NORESERVE, file.descriptor(), 0);
  if (address == MAP_FAILED) throw_system_error(errno);
  bytes_ = {static_cast<const std::uint8_t*>(address), size};
}

bool MappedFile::copy(std::size_t offset, std::span<std::uint8_t> out) const noexcept {
  const std::uint8_t* from = bytes_.data() + offset;
  while (!out.empty()) {
    const iovec here{out.data(), out.size()}, there{const_cast<std::uint8_t*>(from), out.size()};
    // The system's own copy says where a page is gone, instead of a signal.
    const ssize_t copied = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
    if (copied < 0 && errno == EFAULT) return false;
    if (copied <= 0) {  // a sandbox without it
      if (is_shorter()) return false;
      std::memcpy(out.data(), from, out.size());
      break;
    }
    out = out.subspan(static_cast<std::size_t>(copied));
    from += copied;
  }
  return !is_shorter();  // past the end of the file, the rest of its last page reads as zeros
}

bool MappedFile::is_shorter() const noexcept {
  struct stat now {};
  return ::stat(path_.c_str(), &now) == 0 && now.st_dev == device_ && now.st_ino == number_ &&
         std::cmp_less(now.st_size, bytes_.size());
}

void MappedFile::let_go() const noexcept {
  // What was read stays in the system's cache; only this process's count of resident pages falls.
  if (!bytes_.empty() && writes_ == Writes::Forbidden) {
    ::madvise(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      device_(other.device_),
      number_(other.number_),
      bytes_(std::exchange(other.bytes_, {})),
      writes_(other.writes_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(device_, other.device_);
  std::swap(number_, other.number_);
  std::swap(bytes_, other.bytes_);
  std::swap(writes_, other.writes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace snug
