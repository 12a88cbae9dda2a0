#include "snug/cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
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

void check_can_be_written(std::string_view option, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path file = fs::weakly_canonical(path, error);  // links are followed
  if (error) file = path;
  const fs::file_status there = fs::status(file, error);
  int reason = 0;
  if (fs::is_directory(there)) {
    reason = EISDIR;
  } else if (fs::exists(there) && !fs::is_regular_file(there)) {
    reason = ::access(file.c_str(), W_OK) == 0 ? 0 : errno;
  } else {  // it is written beside its name, and renamed
    const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    reason = ::access(folder.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
    if (reason == 0 && !fs::is_directory(folder, error)) reason = ENOTDIR;
  }
  if (reason == 0) return;
  throw UsageError(fmt::format("{}: {} cannot be written: {}", option, path, std::generic_category().message(reason)));
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) != 0) note_failure();
  if (g_failure == 0) return;
  throw Error(fmt::format("cannot write to standard output: {}", std::generic_category().message(g_failure)));
}

}  // namespace snug::cli
