#include "snug/plan/run/window_book.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace snug::plan {
namespace {

/// A use that far from where the step is expected to be says nothing of where it is.
constexpr std::size_t kOutOfOrder = 64;
// With up to kFew tensors in the window all places are tried; with more, those next to the kFarthest last-used ones.
constexpr std::size_t kFew = 256;
constexpr int kFarthest = 32;

}  // namespace

StreamedId WindowBook::add(Bytes bytes) {
  all_.push_back({.bytes = bytes, .uses = {}});
  return static_cast<StreamedId>(all_.size()) - 1;
}

void WindowBook::remove(StreamedId tensor) {
  if (inside(tensor)) leave(tensor);
  Entry& e = entry(tensor);
  e.empty = true;
  note_waiting(tensor);
  removed_ = removed_ || !e.uses.empty();
  e.uses.clear();
}

void WindowBook::forget_removed() {
  if (!std::exchange(removed_, false)) return;
  std::erase_if(order_, [&](const StreamedUse& use) { return entry(use.tensor).uses.empty(); });
  note_uses();
}

void WindowBook::resize(Window window) {
  while (!inside_.empty()) leave(inside_.begin()->second);
  window_ = window;
  free_ = RangeHeap();
  free_.give(0, window.bytes);
  choose_who_stays();
}

void WindowBook::expect(const std::vector<StreamedUse>& order) {
  removed_ = false;
  order_ = order;
  for (Entry& e : all_) e.written = false;
  for (const StreamedUse& use : order) entry(use.tensor).written |= use.changes();
  note_uses();
  choose_who_stays();
}

void WindowBook::restart() {
  forget_removed();
  const bool is_round_over = next_ == order_.size();
  begun_ += next_;
  next_ = 0;
  if (is_round_over) return;  // nobody is farther than before
  for (const auto& [offset, tensor] : inside_) note_rank(tensor);
}

void WindowBook::note_uses() {
  next_ = std::min(next_, order_.size());
  for (Entry& e : all_) e.uses.clear();
  for (std::size_t i = 0; i < order_.size(); ++i) entry(order_[i].tensor).uses.push_back(i);
  waiting_.clear();
  for (std::size_t i = 0; i < all_.size(); ++i) note_waiting(static_cast<StreamedId>(i));
  for (const auto& [offset, tensor] : inside_) note_rank(tensor);
}

void WindowBook::note_waiting(StreamedId tensor) {
  const Entry& e = entry(tensor);
  const bool waits = !e.empty && !e.out && !inside(tensor);
  for (const std::size_t use : e.uses) {
    if (waits) {
      waiting_.insert(use);
    } else {
      waiting_.erase(use);
    }
  }
}

void WindowBook::note_rank(StreamedId tensor) {
  Entry& e = entry(tensor);
  by_rank_.erase(e.rank);
  if (!inside(tensor) || e.own_place != kElsewhere) return;
  const std::size_t uses = distance(e);
  e.rank = {.next = uses == kUnknown ? kUnknown : begun_ + next_ + uses, .unused = ~e.last_use, .tensor = tensor};
  by_rank_.insert(e.rank);
}

void WindowBook::choose_who_stays() {
  place_who_stays();
  for (const auto& [offset, tensor] : inside_) note_rank(tensor);
}

/// Those that would come and go most often for their bytes, from the end of the window down.
void WindowBook::place_who_stays() {
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
  forget_removed();
  Entry& e = entry(tensor);
  e.last_use = ++clock_;
  const std::size_t skipped = distance(e);
  const bool once_more = skipped > 0 && next_ > 0 && next_ <= order_.size() && order_[next_ - 1].tensor == tensor;
  if (!once_more && skipped <= kOutOfOrder) {
    const std::size_t then = begun_ + next_, before = next_;
    next_ = (next_ + skipped) % order_.size() + 1;
    begun_ = then + skipped + 1 - next_;
    for (std::size_t i = 0; i < skipped; ++i) note_rank(order_[(before + i) % order_.size()].tensor);
  }
  note_rank(tensor);
}

void WindowBook::leave(StreamedId tensor) {
  Entry& e = entry(tensor);
  inside_.erase(e.offset);
  free_.give(e.offset, e.bytes);
  e.offset = kElsewhere;
  note_rank(tensor);
  note_waiting(tensor);
}

bool WindowBook::may_leave(const Entry& e, const Search& search) const {
  return e.users == 0 && !(search.sooner && distance(e) <= *search.sooner);
}

/// Where the one in front of it ends, in the range.
Bytes WindowBook::end_before(Inside::const_iterator slot, const Search& search) const {
  if (slot == inside_.begin()) return search.begin;
  const auto& [offset, tensor] = *std::prev(slot);
  return std::max(search.begin, offset + entry(tensor).bytes);
}

std::optional<WindowBook::Found> WindowBook::from(Inside::const_iterator first, const Search& search) const {
  Found found{.place = {.tensor = 0, .offset = end_before(first, search), .leave = {}}, .score = {}};
  for (auto slot = first;; ++slot) {
    const bool is_last = slot == inside_.end() || slot->first >= search.end;
    if ((is_last ? search.end : slot->first) - found.place.offset >= search.bytes) return found;
    if (is_last) return std::nullopt;
    const Entry& e = entry(slot->second);
    if (!may_leave(e, search)) return std::nullopt;
    found.score = {std::min(found.score.distance, distance(e)), std::max(found.score.last_use, e.last_use)};
    found.place.leave.push_back({slot->second, slot->first});
  }
}

std::optional<WindowBook::Inside::const_iterator> WindowBook::reaching(Inside::const_iterator last,
                                                                       const Search& search) const {
  const auto behind = std::next(last);
  const Bytes limit = behind == inside_.end() ? search.end : std::min(search.end, behind->first);
  for (auto first = last;; --first) {
    if (!may_leave(entry(first->second), search)) return std::nullopt;
    if (limit - end_before(first, search) >= search.bytes) return first;
    if (first == inside_.begin() || end_before(first, search) <= search.begin) return std::nullopt;
  }
}

std::optional<WindowBook::Found> WindowBook::best_of_all(const Search& search) const {
  auto slot = inside_.upper_bound(search.begin);
  if (slot != inside_.begin() && end_before(slot, search) > search.begin) --slot;
  std::optional<Found> best;
  for (;; ++slot) {
    auto found = from(slot, search);
    if (found && (!best || found->score.better_than(best->score))) best = std::move(found);
    if (slot == inside_.end() || slot->first >= search.end) return best;
  }
}

std::optional<WindowBook::Found> WindowBook::best_of_farthest(const Search& search) const {
  const auto gap = free_.smallest(search.bytes);
  if (gap && gap->first >= search.begin && gap->first + search.bytes <= search.end)
    return Found{.place = {.tensor = 0, .offset = gap->first, .leave = {}}, .score = {}};
  std::optional<Found> best;
  int looked_at = 0;
  for (auto rank = by_rank_.rbegin(); rank != by_rank_.rend() && looked_at < kFarthest; ++rank) {
    const Entry& e = entry(rank->tensor);
    if (e.offset < search.begin || e.offset >= search.end) continue;
    // None of the others is farther.
    const std::size_t uses = distance(e);
    if ((best && best->score.distance >= uses) || (search.sooner && uses <= *search.sooner)) break;
    if (!may_leave(e, search)) continue;
    ++looked_at;
    const auto slot = inside_.find(e.offset);
    const auto consider = [&](Inside::const_iterator first) {
      auto found = from(first, search);
      if (found && (!best || found->score.better_than(best->score))) best = std::move(found);
    };
    consider(slot);
    if (const auto first = reaching(slot, search); first && *first != slot) consider(*first);
  }
  return best;
}

std::optional<WindowBook::Place> WindowBook::find(StreamedId tensor, Bytes begin, Bytes end,
                                                  std::optional<std::size_t> sooner) const {
  const Search search{.bytes = entry(tensor).bytes, .begin = begin, .end = end, .sooner = sooner};
  const bool few = inside_.size() <= kFew || end - begin == search.bytes;
  auto found = few ? best_of_all(search) : best_of_farthest(search);
  if (!found && !few && !sooner) found = best_of_all(search);
  if (!found) return std::nullopt;
  found->place.tensor = tensor;
  return std::move(found->place);
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
  Entry& e = entry(place->tensor);
  e.offset = place->offset;
  inside_.emplace(place->offset, place->tensor);
  free_.take_at(place->offset, e.bytes);
  note_rank(place->tensor);
  note_waiting(place->tensor);
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
  note_waiting(tensor);
}

std::optional<WindowBook::Place> WindowBook::bring_made(StreamedId tensor) {
  entry(tensor).empty = false;
  note_waiting(tensor);
  used(tensor);
  return take(find(tensor, distance(entry(tensor))));
}

std::optional<WindowBook::Place> WindowBook::bring_ahead() {
  forget_removed();
  if (window_.rotating == 0 || waiting_.empty()) return std::nullopt;
  auto use = waiting_.lower_bound(next_);
  if (use == waiting_.end()) use = waiting_.begin();
  const std::size_t uses = *use >= next_ ? *use - next_ : *use + order_.size() - next_;
  return take(find(order_[*use].tensor, uses));
}

}  // namespace snug::plan
