#include "snug/base/text_file.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <span>
#include <system_error>

#include "snug/base/durable_file.h"

namespace snug {

std::string read_text(const std::filesystem::path& path) {
  const auto fail = [&](int reason) {
    throw std::system_error(reason != 0 ? reason : EIO, std::generic_category(), path.string());
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail(EISDIR);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(errno);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) fail(errno);
  return text;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  DurableFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace snug
