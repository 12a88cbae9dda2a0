#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/plan/run/ledger.h"
#include "snug/plan/step/ids.h"
#include "snug/plan/step/memory_plan.h"

namespace snug::plan {

/// Which values backward fetches before it asks for them: the next of an order, as long as no more than so many bytes
/// have come and not been asked for. The step and the simulator share it.
class Prefetch {
 public:
  Prefetch() = default;
  /// A pass of backward begins.
  explicit Prefetch(Staging staging) : staging_(std::move(staging)) {}

  /// A tensor is unpacked. Calls fetch(value) for each that is fetched now, of `bytes(value)`: until there is no room
  /// for the next, or fetch() returns false. They are on their way then.
  template <class BytesOf, class Fetch>
  void unpacked(const Ledger& ledger, const BytesOf& bytes, const Fetch& fetch);
  /// Backward asks for it, or a replay that it waits for reads it.
  void asked_for(ValueId value);

 private:
  Staging staging_;
  std::int32_t unpacked_ = 0;
  std::size_t next_ = 0;  // of its order
  Bytes ahead_ = 0;
  std::unordered_map<ValueId, Bytes> early_;
};

template <class BytesOf, class Fetch>
void Prefetch::unpacked(const Ledger& ledger, const BytesOf& bytes, const Fetch& fetch) {
  if (unpacked_++ < staging_.first) return;
  for (; next_ < staging_.order.size(); ++next_) {
    const ValueId value = staging_.order[next_];
    if (ledger.resident(value) || !ledger.fetchable(value) || !ledger.has_use(value)) continue;
    const Bytes more = bytes(value);
    if (ahead_ + more > staging_.arriving) return;
    ahead_ += more;
    early_.emplace(value, more);
    if (fetch(value)) continue;
    asked_for(value);
    return;
  }
}

}  // namespace snug::plan
