#include "snug/replay/eviction.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

namespace snug::replay {
namespace {

constexpr Bytes kSmallestWorthIt = 4_KiB;

struct Victim {
  double seconds_per_byte;
  plan::ValueId value;
};

/// What can be dropped now, the cheapest to make again per byte first.
std::vector<Victim> victims(const record::Tape& tape) {
  const plan::Ledger& ledger = tape.ledger();
  const std::vector<double> recovery = ledger.recovery_seconds([&](plan::OpId op) { return tape.seconds(op); });
  std::vector<Victim> found;
  for (plan::ValueId v = 0; v < tape.flow().values(); ++v) {
    if (!ledger.evictable(v) || tape.nbytes(v) < kSmallestWorthIt || !tape.only_ours(v)) continue;
    const double seconds = recovery[static_cast<std::size_t>(tape.flow().producer(v))];
    if (std::isfinite(seconds)) found.push_back({seconds / static_cast<double>(tape.nbytes(v)), v});
  }
  std::ranges::sort(found, {}, &Victim::seconds_per_byte);
  return found;
}

}  // namespace

Evictor::Evictor(std::shared_ptr<record::Tape> tape, memory::DeviceMemory& memory)
    : tape_(std::move(tape)), memory_(memory) {
  memory_.add_pressure_handler(this);
}

Evictor::~Evictor() { memory_.remove_pressure_handler(this); }

bool Evictor::make_room(Bytes bytes) noexcept {
  // Another thread may be in the middle of the tape: then it is no help now.
  const std::unique_lock lock(tape_->mutex(), std::try_to_lock);
  if (!lock.owns_lock()) return false;
  Bytes freed = 0;
  for (const Victim& victim : victims(*tape_)) {
    if (freed >= bytes) break;
    freed += memory_.rounded(tape_->nbytes(victim.value));
    tape_->evict(victim.value);
  }
  return freed > 0;
}

}  // namespace snug::replay
