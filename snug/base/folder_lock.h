#pragma once

#include <filesystem>
#include <optional>

namespace snug {

/// Keeps a folder to one process, and in it to one object, as long as this lives; the system lets go of it when the
/// process dies. Only those who ask are kept away. Movable.
class FolderLock {
 public:
  /// nullopt when somebody has it. Where the file system knows no locks, everybody gets one. Throws std::system_error
  /// when the folder cannot be opened.
  static std::optional<FolderLock> take(const std::filesystem::path& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
};

}  // namespace snug
