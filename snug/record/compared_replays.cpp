#include "snug/record/compared_replays.h"

#include <cstddef>

namespace snug::record {
namespace {

constexpr std::size_t kMostKeys = 1U << 20U;  // steps that never repeat must not fill the memory

}  // namespace

bool ComparedReplays::contains(std::uint64_t key) const {
  const std::lock_guard lock(mutex_);
  return keys_.find(key) != keys_.end();
}

void ComparedReplays::add(std::uint64_t key) {
  const std::lock_guard lock(mutex_);
  if (keys_.size() >= kMostKeys) keys_.clear();
  keys_.insert(key);
}

const std::shared_ptr<ComparedReplays>& ComparedReplays::of_this_process() {
  static const auto* all = new std::shared_ptr(std::make_shared<ComparedReplays>());  // tapes may outlive main()
  return *all;
}

}  // namespace snug::record
