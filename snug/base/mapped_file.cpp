#include "snug/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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

MappedFile::MappedFile(const std::filesystem::path& path, Writes writes) : writes_(writes) {
  const OpenFile file(path);
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) throw_system_error(errno);
  if (S_ISDIR(status.st_mode)) throw_system_error(EISDIR);
  const auto size = static_cast<std::size_t>(status.st_size);
  // An empty range cannot be mapped.
  if (size == 0) return;
  const int protection = writes == Writes::Private ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const address = ::mmap(nullptr, size, protection, MAP_PRIVATE | MAP_NORESERVE, file.descriptor(), 0);
  if (address == MAP_FAILED) throw_system_error(errno);
  bytes_ = {static_cast<const std::uint8_t*>(address), size};
}

void MappedFile::let_go() const noexcept {
  // What was read stays in the system's cache; only this process's count of resident pages falls.
  if (!bytes_.empty() && writes_ == Writes::Forbidden) {
    ::madvise(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})), writes_(other.writes_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(writes_, other.writes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace snug
