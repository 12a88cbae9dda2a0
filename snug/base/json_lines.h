#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace snug {

/// Writes a JSON-lines file: one object a line, each handed to the system at once, so that a run that dies leaves
/// every line it wrote. One thread at a time. Every failure is an Error that names the file and the system's reason.
class JsonLines {
 public:
  enum class Existing {
    Replace,  ///< Begin an empty file.
    Append,   ///< Go on after what is there, as a resumed run does.
  };

  /// Creates the file, and the folders above it that are missing.
  explicit JsonLines(std::filesystem::path path, Existing existing = Existing::Replace);
  JsonLines(JsonLines&& other) noexcept;
  JsonLines& operator=(JsonLines&& other) noexcept;
  /// Closes without a word; call close() to hear of a failure.
  ~JsonLines();

  /// Writes one line. nan and infinity, which JSON lacks, become null.
  void write(const nlohmann::ordered_json& line);

  /// Closes the file; a second call does nothing.
  void close();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace snug
