#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

namespace snug::record {

/// Which values of which steps have been compared with a replay, for VerifyReplay::Once. A key is a hash of the place
/// in the program, the operators up to the value, and the value. Any thread.
class ComparedReplays {
 public:
  [[nodiscard]] bool contains(std::uint64_t key) const;
  void add(std::uint64_t key);

  /// Takes out the key that was added first, so that its value is compared once more: called in each step, it has all
  /// compared in turn.
  void forget_oldest();
  /// Whether the key has been added before, be it that it was taken out since or not.
  [[nodiscard]] bool has_had(std::uint64_t key) const;

  /// For regions, which have nothing that lasts from step to step: those of the process.
  static const std::shared_ptr<ComparedReplays>& of_this_process();

 private:
  mutable std::mutex mutex_;
  ska::flat_hash_map<std::uint64_t, bool> is_in_;  // of each key that was added
  std::deque<std::uint64_t> in_order_;             // the keys that contains() finds, oldest first
};

}  // namespace snug::record
