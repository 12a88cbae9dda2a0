#include "snug/replay/eviction.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "snug/plan/search/timeless.h"

namespace snug::replay {
namespace {

constexpr Bytes kSmallestWorthIt = 4_KiB;  // smaller blocks share pages
constexpr std::size_t kLookedAtClosely = 64;
/// How long an eviction waits for the tape. Whoever holds it for longer is waiting, in the program's own code, for the
/// very thread that asks for room.
constexpr std::chrono::seconds kPatience{1};

struct Victim {
  plan::ValueId value;
  double cost;  // the smaller, the sooner it goes
};

double seconds_of(const record::Tape& tape, plan::OpId op, EvictionCost by) {
  if (by == EvictionCost::Measured) return tape.seconds(op);
  Bytes bytes = 0;
  for (const plan::Output& out : tape.flow().outputs(op)) bytes += tape.values().nbytes(out.value);
  return plan::timeless_seconds(tape.calls().call(op).traits->name, bytes);
}

/// Seconds of all operators that would have to run to make something again.
class Recovery {
 public:
  Recovery(const record::Tape& tape, EvictionCost by)
      : tape_(tape), by_(by), seen_in_(static_cast<std::size_t>(tape.flow().ops()), 0) {}

  double seconds(plan::OpId op) {
    ++round_;
    double sum = 0;
    stack_.assign(1, op);
    seen_in_[static_cast<std::size_t>(op)] = round_;
    while (!stack_.empty()) {
      const plan::OpId next = stack_.back();
      stack_.pop_back();
      sum += seconds_of(tape_, next, by_);
      for (plan::ValueId input : tape_.flow().inputs(next)) {
        const plan::OpId producer = tape_.flow().producer(input);
        if (producer == plan::kNoOp || tape_.ledger().at_hand(input)) continue;
        if (std::exchange(seen_in_[static_cast<std::size_t>(producer)], round_) != round_) stack_.push_back(producer);
      }
    }
    return sum;
  }

 private:
  const record::Tape& tape_;
  EvictionCost by_;
  std::vector<std::uint32_t> seen_in_;
  std::vector<plan::OpId> stack_;
  std::uint32_t round_ = 0;
};

/// What can be dropped now of that device's memory, in the order in which it should go: as in DTR (Kirisame et al.
/// 2021, arXiv 2006.09616), few seconds to make again, absent ancestors included, per byte and per distance from where
/// the step is. What is far away was made long ago, and backward, which goes the other way, asks for it late.
std::vector<Victim> victims(const record::Tape& tape, c10::Device device, plan::Resort resort, EvictionCost by) {
  const plan::Ledger& ledger = tape.ledger();
  const record::ValueStore& values = tape.values();
  const std::vector<double> chain = ledger.recovery_seconds([&](plan::OpId op) { return seconds_of(tape, op, by); });
  const auto position = static_cast<double>(tape.position());
  const auto bytes = [&](plan::ValueId v) {
    const Bytes compressed = values.compressed_to(v);
    return compressed > 0 ? compressed : values.nbytes(v);
  };
  const auto cost = [&](plan::ValueId v, double seconds) {
    const double distance = std::abs(position - static_cast<double>(tape.flow().producer(v))) + 1;
    return seconds / (static_cast<double>(bytes(v)) * distance);
  };
  const auto may_go = [&](plan::ValueId v) {
    return values.compressed_to(v) > 0 || (ledger.evictable(v, resort) && values.only_ours(v));
  };
  std::vector<Victim> found;
  for (plan::ValueId v = 0; v < tape.flow().values(); ++v) {
    if (values.must(v) == plan::Must::Keep || values.device(v) != device) continue;
    if (bytes(v) < kSmallestWorthIt || !may_go(v)) continue;
    // Along the longest chain of absent inputs: quick, and infinite when it cannot be made again.
    const bool comes_back = ledger.resident(v) && ledger.fetchable(v);
    const double seconds = comes_back ? 0 : chain[static_cast<std::size_t>(tape.flow().producer(v))];
    if (std::isfinite(seconds)) found.push_back({v, cost(v, seconds)});
  }
  std::ranges::sort(found, {}, &Victim::cost);
  const auto close = found.begin() + static_cast<std::ptrdiff_t>(std::min(found.size(), kLookedAtClosely));
  Recovery recovery(tape, by);
  for (auto victim = found.begin(); victim != close; ++victim) {
    if (victim->cost > 0) victim->cost = cost(victim->value, recovery.seconds(tape.flow().producer(victim->value)));
  }
  std::sort(found.begin(), close, [](const Victim& a, const Victim& b) { return a.cost < b.cost; });
  return found;
}

}  // namespace

Evictor::Evictor(std::shared_ptr<record::Tape> tape, memory::DeviceMemory& memory, EvictionCost cost)
    : tape_(std::move(tape)), memory_(memory), cost_(cost) {
  if (cost == EvictionCost::Measured) tape_->time_operators(memory);
  memory_.add_pressure_handler(this);
}

Evictor::~Evictor() { memory_.remove_pressure_handler(this); }

bool Evictor::make_room(Bytes bytes, memory::Patience patience) noexcept {
  if (!tape_->mutex().try_lock_to_evict_for(patience == memory::Patience::AMoment ? kPatience
                                                                                  : std::chrono::seconds(0)))
    return false;
  const std::lock_guard lock(tape_->mutex(), std::adopt_lock);
  Bytes freed = 0;
  try {
    freed = tape_->values().all_gone_from(memory_.device());
    // What a running replay is going to read only if there is nothing else.
    for (const plan::Resort resort : {plan::Resort::First, plan::Resort::Last}) {
      if (freed > 0) break;
      for (const Victim& victim : victims(*tape_, memory_.device(), resort, cost_)) {
        if (freed >= bytes) break;
        freed += memory_.rounded(tape_->evict(victim.value));
      }
    }
  } catch (...) {  // of the device, or of the host's memory: who asks for room is told that there is none
    return freed > 0;
  }
  return freed > 0;
}

}  // namespace snug::replay
