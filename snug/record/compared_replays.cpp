#include "snug/record/compared_replays.h"

#include <cstddef>

namespace snug::record {
namespace {

constexpr std::size_t kMostKeys = 1U << 20U;  // steps that never repeat must not fill the memory

}  // namespace

bool ComparedReplays::contains(std::uint64_t key) const {
  const std::lock_guard lock(mutex_);
  const auto found = is_in_.find(key);
  return found != is_in_.end() && found->second;
}

void ComparedReplays::add(std::uint64_t key) {
  const std::lock_guard lock(mutex_);
  if (is_in_.size() >= kMostKeys) {
    is_in_.clear();
    in_order_.clear();
  }
  bool& is_in = is_in_[key];
  if (is_in) return;
  is_in = true;
  in_order_.push_back(key);
}

void ComparedReplays::forget_oldest() {
  const std::lock_guard lock(mutex_);
  if (in_order_.empty()) return;
  is_in_[in_order_.front()] = false;
  in_order_.pop_front();
}

bool ComparedReplays::has_had(std::uint64_t key) const {
  const std::lock_guard lock(mutex_);
  return is_in_.find(key) != is_in_.end();
}

const std::shared_ptr<ComparedReplays>& ComparedReplays::of_this_process() {
  static const auto* all = new std::shared_ptr(std::make_shared<ComparedReplays>());  // tapes may outlive main()
  return *all;
}

}  // namespace snug::record
