#include "snug/base/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>
#include <system_error>

#include "snug/base/durable_file.h"

namespace snug {

std::string read_text(const std::filesystem::path& path, std::size_t most) {
  const auto fail = [&](int reason) { throw std::system_error(reason, std::generic_category(), path.string()); };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (descriptor < 0) fail(errno);
  const struct Closing {
    int descriptor;
    ~Closing() { ::close(descriptor); }
  } closing{descriptor};
  std::string text;
  std::array<char, 1 << 16> piece;
  while (true) {
    const ssize_t read = ::read(descriptor, piece.data(), piece.size());
    if (read == 0) return text;
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) fail(errno);  // of a folder, EISDIR
    if (static_cast<std::size_t>(read) > most - text.size()) fail(EFBIG);
    text.append(piece.data(), static_cast<std::size_t>(read));
  }
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  DurableFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace snug
