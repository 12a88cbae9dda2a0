#include "snug/report/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace snug::report {

std::optional<int> terminal_columns(std::FILE* file) {
  const int descriptor = ::fileno(file);
  if (::isatty(descriptor) != 1) return std::nullopt;
  if (const char* const named = std::getenv("COLUMNS"); named != nullptr) {
    const std::string_view text = named;
    int columns = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
    if (error == std::errc() && end == text.data() + text.size() && columns > 0) return columns;
  }
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace snug::report
