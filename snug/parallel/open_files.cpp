#include "snug/parallel/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <filesystem>
#include <iterator>
#include <mutex>

#include "snug/base/errors.h"

namespace snug::parallel {
namespace {

constexpr rlim_t kSpare = 64;  // for files of the data, training states, LibTorch

/// Files that this process has open; none where the system does not tell.
rlim_t open_files() {
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  rlim_t count = 0;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++count;
  return count;
}

}  // namespace

void allow_open_files(int more, const std::string& what) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = open_files() + static_cast<rlim_t>(more) + kSpare;
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max >= needed) {
    limit.rlim_cur = needed;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  }
  throw UsageError(fmt::format(
      "parallel: {} open files and sockets are needed for {}, and this process may have {}; raise that with "
      "`ulimit -n {}` where the processes are started, or in the limits of the service",
      needed, what, limit.rlim_max, needed));
}

}  // namespace snug::parallel
