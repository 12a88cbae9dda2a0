#include "snug/replay/step_arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/hash.h"
#include "snug/plan/search/layout.h"

namespace snug::replay {
namespace {

using Asked = std::vector<memory::Arena::Asked>;

constexpr std::size_t kMostKinds = 64;  // as many as a session has plans for
constexpr int kMostChosen = 8;          // times, for steps that do not give back in one order
constexpr std::size_t kExpected = 4;    // of which places are chosen anew where something lies in the arena

/// Of steps that ask for the same bytes in the same order.
std::uint64_t hash_of(const Asked& asked) {
  std::vector<Bytes> bytes;
  for (const auto& [of_one, until] : asked) bytes.push_back(of_one);
  return hash_64(std::as_bytes(std::span(bytes)));
}

/// Counts in that some are given back later. When autograd's threads do so is not the same each time. Whether any were.
bool merge(Asked& known, const Asked& asked) {
  bool changed = false;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (asked[i].until <= known[i].until) continue;
    known[i].until = asked[i].until;
    changed = true;
  }
  return changed;
}

}  // namespace

StepArena::StepArena(memory::DeviceMemory& memory) : memory_(memory), arena_(memory.make_arena()) {
  if (arena_) return;
  throw UsageError(
      fmt::format("arena: it is for accelerators, and the budget is for the memory of the {}, whose pages are moved to "
                  "where a range is needed; leave it out",
                  memory.device().str()));
}

StepArena::~StepArena() { arena_->close(); }

std::shared_ptr<StepArena> StepArena::of(memory::DeviceMemory& memory) {
  static std::mutex mutex;
  static std::map<const memory::DeviceMemory*, std::weak_ptr<StepArena>> known;
  const std::lock_guard lock(mutex);
  std::weak_ptr<StepArena>& there = known[&memory];
  if (auto arena = there.lock()) return arena;
  auto made = std::make_shared<StepArena>(memory);
  there = made;
  return made;
}

void StepArena::begin() {
  const std::lock_guard lock(mutex_);
  if (Asked asked = arena_->end(); !asked.empty()) note(std::move(asked));
  resize();
  const Occupied occupied = arena_->occupied();
  std::vector<Places> known;
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    Kind& kind = kinds_[i];
    if (kind.chosen.places) known.push_back(i < kExpected ? places_beside(kind, occupied) : kind.chosen.places);
  }
  arena_->begin(std::move(known));
  memory_.use(arena_);
}

StepArena::Chosen StepArena::choose(const Asked& asked, const Occupied& occupied) {
  Chosen chosen;
  std::vector<plan::TimedBlock> blocks;
  std::vector<std::size_t> of_blocks;
  memory::Arena::Places places;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto& [bytes, until] = asked[i];
    places.push_back({bytes});
    if (until == memory::Arena::kStays) {
      chosen.outliving += bytes;
      continue;
    }
    blocks.push_back({bytes, static_cast<std::int64_t>(i), until});
    of_blocks.push_back(i);
  }
  std::vector<plan::Occupied> parts;
  for (const auto& [offset, bytes] : occupied) parts.push_back({offset, bytes});
  const plan::Layout layout = plan::lay_out(blocks, parts);
  for (std::size_t i = 0; i < blocks.size(); ++i) places[of_blocks[i]].offset = layout.offsets[i];
  chosen.places = std::make_shared<const memory::Arena::Places>(std::move(places));
  chosen.bytes = layout.bytes;
  chosen.highest = plan::highest(blocks);
  return chosen;
}

void StepArena::note(Asked asked) {
  const std::uint64_t hash = hash_of(asked);
  const auto found = std::ranges::find(kinds_, hash, &Kind::hash);
  if (found == kinds_.end()) {
    if (kinds_.size() == kMostKinds) kinds_.pop_back();
    kinds_.insert(kinds_.begin(), Kind{.hash = hash, .asked = std::move(asked)});
    return;
  }
  std::rotate(kinds_.begin(), found, found + 1);
  Kind& kind = kinds_.front();
  const bool changed = kind.times_chosen < kMostChosen && merge(kind.asked, asked);
  if (kind.chosen.places && !changed) return;
  ++kind.times_chosen;
  kind.chosen = choose(kind.asked, {});
  kind.beside = nullptr;
}

const StepArena::Places& StepArena::places_beside(Kind& kind, const Occupied& occupied) {
  if (occupied.empty()) return kind.chosen.places;
  if (kind.beside && kind.occupied == occupied) return kind.beside;
  if (++kind.times_beside > kMostChosen) return kind.chosen.places;  // those that are free
  kind.beside = choose(kind.asked, occupied).places;
  kind.occupied = occupied;
  return kind.beside;
}

void StepArena::resize() {
  Bytes wanted = 0, outliving = 0;
  for (const Kind& kind : kinds_) {
    wanted = std::max(wanted, kind.chosen.bytes);
    outliving = std::max(outliving, kind.chosen.outliving);
  }
  if (wanted <= wanted_) return;
  auto limit = memory_.stats().limit;
  if (limit) *limit -= outliving;
  if (arena_->resize(wanted, limit)) wanted_ = wanted;
}

StepArena::Stats StepArena::stats() const {
  const std::lock_guard lock(mutex_);
  const memory::Arena::Stats arena = arena_->stats();
  Bytes highest = 0;
  for (const Kind& kind : kinds_) highest = std::max(highest, kind.chosen.highest);
  return {.bytes = arena.bytes, .highest = highest, .placed = arena.placed, .elsewhere = arena.elsewhere};
}

}  // namespace snug::replay
