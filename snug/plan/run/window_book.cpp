#include "snug/plan/run/window_book.h"

#include <algorithm>
#include <utility>

namespace snug::plan {
namespace {

/// A use that far from where the step is expected to be says nothing of where it is.
constexpr std::size_t kOutOfOrder = 64;

}  // namespace

StreamedId WindowBook::add(Bytes bytes) {
  all_.push_back({.bytes = bytes, .uses = {}});
  return static_cast<StreamedId>(all_.size()) - 1;
}

void WindowBook::remove(StreamedId tensor) {
  if (inside(tensor)) leave(tensor);
  std::erase_if(order_, [&](const StreamedUse& use) { return use.tensor == tensor; });
  note_uses();
}

void WindowBook::resize(Window window) {
  while (!inside_.empty()) leave(inside_.begin()->second);
  window_ = window;
  choose_who_stays();
}

void WindowBook::expect(const std::vector<StreamedUse>& order) {
  order_ = order;
  for (Entry& e : all_) e.written = false;
  for (const StreamedUse& use : order) entry(use.tensor).written |= use.changes();
  note_uses();
  choose_who_stays();
}

void WindowBook::note_uses() {
  none_to_come_ = false;
  next_ = std::min(next_, order_.size());
  for (Entry& e : all_) e.uses.clear();
  for (std::size_t i = 0; i < order_.size(); ++i) entry(order_[i].tensor).uses.push_back(i);
}

/// Those that would come and go most often for their bytes, from the end of the window down.
void WindowBook::choose_who_stays() {
  for (Entry& e : all_) e.own_place = kElsewhere;
  others_ = window_.bytes;
  if (window_.rotating == 0) return;
  std::vector<StreamedId> used;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (!all_[i].uses.empty()) used.push_back(static_cast<StreamedId>(i));
  }
  const auto copies = [&](StreamedId t) { return entry(t).uses.size() + (entry(t).written ? 1 : 0); };
  std::ranges::sort(used, [&](StreamedId a, StreamedId b) {
    return std::pair(copies(b), entry(a).uses.front()) < std::pair(copies(a), entry(b).uses.front());
  });
  Bytes all = 0;
  for (const StreamedId t : used) all += entry(t).bytes;
  if (all <= window_.bytes) return;  // none has to go
  others_ = window_.rotating;
  Bytes end = window_.bytes;
  for (const StreamedId t : used) {
    Entry& e = entry(t);
    if (end - e.bytes < others_) continue;
    end -= e.bytes;
    e.own_place = end;
  }
}

std::size_t WindowBook::distance(const Entry& e) const {
  if (e.uses.empty()) return kUnknown;
  const auto found = std::ranges::lower_bound(e.uses, next_);
  return found != e.uses.end() ? *found - next_ : e.uses.front() + order_.size() - next_;
}

void WindowBook::used(StreamedId tensor) {
  Entry& e = entry(tensor);
  e.last_use = ++clock_;
  const std::size_t skipped = distance(e);
  if (skipped > 0 && next_ > 0 && next_ <= order_.size() && order_[next_ - 1].tensor == tensor) return;  // once more
  if (skipped <= kOutOfOrder) next_ = (next_ + skipped) % order_.size() + 1;
}

void WindowBook::leave(StreamedId tensor) {
  Entry& e = entry(tensor);
  inside_.erase(e.offset);
  e.offset = kElsewhere;
  none_to_come_ = false;
}

/// Of all runs of neighbours that are long enough, free ones between them, the one whose next use is farthest.
std::optional<WindowBook::Place> WindowBook::find(StreamedId tensor, Bytes begin, Bytes end,
                                                  std::optional<std::size_t> sooner) const {
  struct Score {
    std::size_t distance = kUnknown;  // until the first of those that leave is used
    std::uint64_t last_use = 0;       // of those that are as far, the youngest
    [[nodiscard]] bool better_than(const Score& other) const {
      return distance != other.distance ? distance > other.distance : last_use < other.last_use;
    }
  };
  struct Slot {
    StreamedId tensor;
    Bytes begin, end;
    Score score;
    bool stays;
  };
  std::vector<Slot> slots;
  for (const auto& [offset, id] : inside_) {
    const Entry& e = entry(id);
    if (offset + e.bytes <= begin || offset >= end) continue;
    const std::size_t next = distance(e);
    slots.push_back({id, offset, offset + e.bytes, {next, e.last_use}, e.users > 0 || (sooner && next <= *sooner)});
  }
  struct Run {
    Bytes begin;
    std::size_t first, end;  // of slots
    Score score;
  };
  std::optional<Run> best;
  const Bytes bytes = entry(tensor).bytes;
  for (std::size_t first = 0; first <= slots.size(); ++first) {
    Run run{first == 0 ? begin : std::max(begin, slots[first - 1].end), first, first, {}};
    while (run.end < slots.size() && std::min(end, slots[run.end].begin) - run.begin < bytes) {
      const Slot& slot = slots[run.end++];
      if (slot.stays) {
        run.begin = end;  // it is none
        break;
      }
      run.score = {std::min(run.score.distance, slot.score.distance),
                   std::max(run.score.last_use, slot.score.last_use)};
    }
    const Bytes limit = run.end < slots.size() ? std::min(end, slots[run.end].begin) : end;
    if (limit - run.begin >= bytes && (!best || run.score.better_than(best->score))) best = run;
  }
  if (!best) return std::nullopt;
  Place found{tensor, best->begin, {}};
  for (std::size_t i = best->first; i < best->end; ++i) found.leave.push_back({slots[i].tensor, slots[i].begin});
  return found;
}

std::optional<WindowBook::Place> WindowBook::find(StreamedId tensor, std::optional<std::size_t> sooner) const {
  const Entry& e = entry(tensor);
  if (e.own_place != kElsewhere) return find(tensor, e.own_place, e.own_place + e.bytes, sooner);
  return find(tensor, 0, others_, sooner);
}

std::optional<WindowBook::Place> WindowBook::find_anywhere(StreamedId tensor) const {
  if (auto found = find(tensor, std::nullopt)) return found;
  return find(tensor, 0, window_.bytes, std::nullopt);
}

std::optional<WindowBook::Place> WindowBook::take(std::optional<Place> place) {
  if (!place) return place;
  for (const Place::Left& left : place->leave) leave(left.tensor);
  entry(place->tensor).offset = place->offset;
  inside_.emplace(place->offset, place->tensor);
  return place;
}

std::optional<WindowBook::Place> WindowBook::bring(StreamedId tensor) { return take(find_anywhere(tensor)); }

std::optional<WindowBook::Place> WindowBook::bring_beside(StreamedId tensor, const std::vector<StreamedId>& all) {
  Bytes begin = 0;
  for (const StreamedId other : all) {
    if (other == tensor) break;
    begin += entry(other).bytes;
  }
  return take(find(tensor, begin, begin + entry(tensor).bytes, std::nullopt));
}

void WindowBook::lose(StreamedId tensor) {
  if (inside(tensor)) leave(tensor);
  entry(tensor).empty = true;
}

std::optional<WindowBook::Place> WindowBook::bring_made(StreamedId tensor) {
  entry(tensor).empty = false;
  none_to_come_ = false;
  used(tensor);
  return take(find(tensor, distance(entry(tensor))));
}

std::optional<WindowBook::Place> WindowBook::bring_ahead() {
  if (window_.rotating == 0 || none_to_come_) return std::nullopt;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const StreamedId next = order_[(next_ + i) % order_.size()].tensor;
    if (!entry(next).empty && !entry(next).out && !inside(next)) return take(find(next, i));
  }
  none_to_come_ = true;
  return std::nullopt;
}

}  // namespace snug::plan
