#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace snug {

/// Writes a file that is either there as a whole or not at all, whatever happens to the process or the machine. It is
/// written beside its name, under one of its own that has ".unfinished" in it; finish() has the system put it on the
/// disk and renames it. What is not finished is removed by the destructor, and a file that had the name before stays as
/// it was; its permissions go over. Several writers of one name do not disturb each other: the last to finish wins.
/// Links are followed: they stay, and the file that they lead to is the one written. What is no regular file (a device,
/// a pipe) and what standard output or error go to are written in place as the bytes come, and so may be there in part.
/// Not movable. Every function throws std::system_error with the reason that the system gave, a full disk among them.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  ~DurableFile();

  void write(std::span<const std::byte> bytes);
  /// Nothing may be written after it. When it throws, the file is as it was, or whole and perhaps not on the disk yet.
  void finish();

 private:
  std::filesystem::path path_;
  std::string unfinished_;
  int descriptor_;
};

/// Removes what writers that died have left in a folder: nobody may be writing there. A folder that is not there has
/// none.
void remove_unfinished(const std::filesystem::path& folder);

/// Has the system put a folder's list of names on the disk, so that what was made, renamed or removed there stays so.
void sync_folder(const std::filesystem::path& folder);

}  // namespace snug
