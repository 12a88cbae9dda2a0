#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/mapped_file.h"

namespace snug::data {

/// The bytes of one text file, or of all text files under a folder, one after the other in the order of their paths.
/// The files are mapped read-only, not read: the corpus costs address space and page cache, no memory of its own.
/// Movable, not copyable. Reads are safe from any number of threads.
class TextCorpus {
 public:
  /// Opens a file, or a folder with all that lies under it. In a folder, empty files, files that are no text (see
  /// format_of_no_text) and files and folders whose names begin with a dot are left out, and links to folders are not
  /// followed. Throws UsageError when the path is missing, a file cannot be read, a file that is named is no text, or
  /// no text is left.
  static TextCorpus open(const std::filesystem::path& path);

  [[nodiscard]] Bytes size() const { return starts_.back(); }
  [[nodiscard]] std::size_t files() const { return files_.size(); }
  /// The skipped files of a folder as a message, as in "2 of 30 files: not text (first: a/b.bin, gzip)"; "" if none.
  /// Empty files are not mentioned; a hidden folder counts as one.
  [[nodiscard]] const std::string& left_out() const noexcept { return left_out_; }
  /// Where each file begins.
  [[nodiscard]] std::span<const Bytes> starts() const { return std::span(starts_).first(files_.size()); }

  /// Copies out.size() bytes from `offset` on, across files. Throws Error when they are not all inside the corpus, or a
  /// file has become shorter.
  void copy(Bytes offset, std::span<std::uint8_t> out) const;

 private:
  TextCorpus() = default;
  void add(MappedFile file);

  std::vector<MappedFile> files_;
  std::string left_out_;
  std::vector<Bytes> starts_{0};  ///< Where each file begins; the last element is where the corpus ends.
};

}  // namespace snug::data
