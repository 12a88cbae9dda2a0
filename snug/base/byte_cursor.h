#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "snug/base/damaged_file.h"

namespace snug {

/// The bytes of a file from the front on, little-endian. Every failure is a DamagedFile that names the file, the place
/// and what is read there.
class ByteCursor {
 public:
  ByteCursor(std::span<const std::uint8_t> file, std::string_view name) : file_(file), name_(name) {}

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw DamagedFile(name_, fmt::format("at byte {}: {}", at_, fmt::format(format, std::forward<Args>(args)...)));
  }

  template <class T>
  T take(const std::string& what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  /// A length of 64 bits, and so many bytes.
  std::string take_string(const std::string& what, std::uint64_t longest) {
    const auto length = take<std::uint64_t>(what);
    if (length > longest) fail("{}: a string of {} bytes; the format allows {}", what, length, longest);
    return take_text(length, what);
  }
  /// So many bytes.
  std::string take_text(std::uint64_t length, const std::string& what) {
    need(length, what);
    std::string text(reinterpret_cast<const char*>(file_.data() + at_), static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return text;
  }

  /// Fails unless so many bytes are left. Keeps a count in the file from asking for more memory than the file has.
  void need(std::uint64_t bytes, const std::string& what) const {
    if (bytes > file_.size() - at_) {
      fail("{}: needs {} bytes, and the file has {} more; it is cut off or damaged", what, bytes, file_.size() - at_);
    }
  }

  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] std::size_t size() const { return file_.size(); }

 private:
  std::span<const std::uint8_t> file_;
  std::string_view name_;
  std::size_t at_ = 0;
};

}  // namespace snug
