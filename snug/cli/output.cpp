#include "snug/cli/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "snug/base/errors.h"

namespace snug::cli {
namespace {

int g_failure = 0;  // of the first write that failed: stdio keeps no reason

void note_failure() {
  if (g_failure == 0) g_failure = errno != 0 ? errno : EIO;
}

}  // namespace

void print(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) < text.size()) note_failure();
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) != 0) note_failure();
  if (g_failure == 0) return;
  throw Error(fmt::format("cannot write to standard output: {}", std::generic_category().message(g_failure)));
}

}  // namespace snug::cli
