#include "snug/base/json_lines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"

namespace snug {
namespace {

[[noreturn]] void fail(std::string_view operation, const std::filesystem::path& path, int error) {
  throw Error(fmt::format("cannot {} {}: {}; free the disk, or write elsewhere", operation, path.string(),
                          std::generic_category().message(error)));
}

/// As of a process that was killed, or a disk that was full.
bool ends_within_a_line(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) return false;
  std::ifstream file(path, std::ios::binary);
  if (!file.seekg(-1, std::ios::end)) return false;
  return file.get() != '\n';
}

}  // namespace

JsonLines::JsonLines(std::filesystem::path path, Existing existing) : path_(std::move(path)) {
  std::error_code error;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), error);
  if (error) fail("create the folder of", path_, error.value());
  const int start = existing == Existing::Replace ? O_TRUNC : 0;
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | start, 0666);
  if (descriptor_ < 0) fail("open", path_, errno);
  if (existing == Existing::Append && ends_within_a_line(path_) && ::write(descriptor_, "\n", 1) < 0)
    fail("write to", path_, errno);
}

JsonLines::JsonLines(JsonLines&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

JsonLines& JsonLines::operator=(JsonLines&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

JsonLines::~JsonLines() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void JsonLines::write(const nlohmann::ordered_json& line) {
  if (descriptor_ < 0) fail("write to", path_, EBADF);
  const std::string text = line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write to", path_, errno);
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

void JsonLines::close() {
  if (descriptor_ < 0) return;
  // Linux frees the descriptor even when close fails: it must not be closed again.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close", path_, errno);
}

}  // namespace snug
