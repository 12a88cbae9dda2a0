#include "snug/plan/run/departures.h"

#include <algorithm>

namespace snug::plan {

std::vector<ValueId> Departures::begin(ValueId value, Bytes bytes, Bytes most) {
  leaving_.emplace_back(value, bytes);
  bytes_ += bytes;
  std::vector<ValueId> gone;
  while (bytes_ > most) {
    gone.push_back(leaving_.front().first);
    bytes_ -= leaving_.front().second;
    leaving_.pop_front();
  }
  return gone;
}

void Departures::end(ValueId value) {
  const auto found = std::ranges::find(leaving_, value, &std::pair<ValueId, Bytes>::first);
  if (found == leaving_.end()) return;
  bytes_ -= found->second;
  leaving_.erase(found);
}

std::vector<ValueId> Departures::on_their_way() const {
  std::vector<ValueId> values;
  for (const auto& [value, bytes] : leaving_) values.push_back(value);
  return values;
}

std::vector<ValueId> Departures::end_all() {
  std::vector<ValueId> gone = on_their_way();
  leaving_.clear();
  bytes_ = 0;
  return gone;
}

}  // namespace snug::plan
