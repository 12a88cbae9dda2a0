#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <mutex>

namespace snug::record {

/// Which values of which steps have been compared with a replay, so that VerifyReplay::Once compares each once. A key
/// is a hash of the place in the program, the operators up to the value, and the value. Any thread.
class ComparedReplays {
 public:
  [[nodiscard]] bool contains(std::uint64_t key) const;
  void add(std::uint64_t key);

  /// For regions, which have nothing that lasts from step to step: those of the process.
  static const std::shared_ptr<ComparedReplays>& of_this_process();

 private:
  mutable std::mutex mutex_;
  ska::flat_hash_set<std::uint64_t> keys_;
};

}  // namespace snug::record
