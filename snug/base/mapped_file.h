#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace snug {

/// A whole file as memory: it costs address space and page cache, and no memory of its own before it is written to.
/// Movable. Reads are safe from any number of threads. The file must not be truncated while it is mapped: reading
/// bytes() past its new end raises SIGBUS; only copy() is safe then.
class MappedFile {
 public:
  enum class Writes : std::uint8_t {
    Forbidden,  ///< A write into bytes() ends the process.
    Private,    ///< A write changes this mapping alone, and costs the page it touches; the file stays as it is.
  };

  /// Throws std::system_error with the reason that the system gave.
  explicit MappedFile(const std::filesystem::path& path, Writes writes = Writes::Forbidden);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }
  /// The same as text.
  [[nodiscard]] std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  /// Copies out.size() bytes starting at `offset`; the range must be inside bytes(). Returns false if the file has been
  /// truncated since it was mapped. A file that replaced it under the same name (another inode) is ignored.
  [[nodiscard]] bool copy(std::size_t offset, std::span<std::uint8_t> out) const noexcept;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// The pages that were read no longer count as this process's memory. Only where writes are forbidden.
  void let_go() const noexcept;

 private:
  [[nodiscard]] bool is_shorter() const noexcept;

  std::string path_;  // a std::filesystem::path takes ten times the memory, and a corpus may have thousands of files
  std::uint64_t device_ = 0, number_ = 0;  // of the file
  std::span<const std::uint8_t> bytes_;
  Writes writes_;
};

}  // namespace snug
