#include "snug/replay/eviction.h"

#include <limits>
#include <mutex>
#include <utility>

namespace snug::replay {
namespace {

constexpr Bytes kSmallestWorthIt = 4_KiB;

/// The value that is cheapest to make again per byte, or kNoValue.
plan::ValueId cheapest(const record::Tape& tape) {
  plan::ValueId best = plan::kNoValue;
  double best_cost = std::numeric_limits<double>::infinity();
  const plan::Ledger& ledger = tape.ledger();
  for (plan::ValueId v = 0; v < tape.flow().values(); ++v) {
    if (!ledger.evictable(v) || tape.nbytes(v) < kSmallestWorthIt || !tape.only_ours(v)) continue;
    const auto ops = ledger.recovery(v);
    if (ops.empty()) continue;
    double seconds = 0;
    for (plan::OpId op : ops) seconds += tape.seconds(op);
    const double cost = seconds / static_cast<double>(tape.nbytes(v));
    if (cost < best_cost) {
      best_cost = cost;
      best = v;
    }
  }
  return best;
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
  while (freed < bytes) {
    const plan::ValueId victim = cheapest(*tape_);
    if (victim == plan::kNoValue) break;
    freed += memory_.rounded(tape_->nbytes(victim));
    tape_->evict(victim);
  }
  return freed > 0;
}

}  // namespace snug::replay
