#include "snug/plan/run/window_cost.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace snug::plan {
namespace {

/// Goes through the uses as replay::StreamWindow does, with a clock for each way of copying.
class WindowRun {
 public:
  WindowRun(const StreamedStep& step, Window window, const MoveCost& copies)
      : step_(step), copies_(copies), book_(window), dirty_(step.places.size(), 0), there_(step.places.size(), 0) {
    std::vector<StreamedUse> order;
    for (const Bytes bytes : step.places) book_.add(bytes);
    for (const StreamedStep::Use& use : step.uses) {
      order.push_back(use.what);
      if (use.what.does == StreamedUse::Does::Makes) lose(use.what.tensor);
    }
    book_.expect(order);
  }

  /// One step. Returns by how many seconds it is longer than it is without.
  double run() {
    book_.restart();
    const double began = now_;
    double before = 0;
    for (const StreamedStep::Use& use : step_.uses) {
      now_ += use.at - std::exchange(before, use.at);
      begin(use.what);
    }
    now_ += step_.seconds - before;
    for (const StreamedStep::Use& use : step_.uses) {
      if (use.what.does == StreamedUse::Does::Makes) lose(use.what.tensor);
    }
    return now_ - began - step_.seconds;
  }

  Bytes in = 0, out = 0;

 private:
  struct Pending {
    Bytes begin, end;
    double until;
  };

  void begin(const StreamedUse& use) {
    if (use.does == StreamedUse::Does::Makes) return make(use.tensor);
    if (!book_.inside(use.tensor)) {
      const auto place = book_.bring(use.tensor);
      if (!place) return use_outside(use);
      come(*place);
    }
    book_.begin_use(use.tensor);
    book_.used(use.tensor);
    while (const auto ahead = book_.bring_ahead()) come(*ahead);
    now_ = std::max(now_, there_[index(use.tensor)]);
    dirty_[index(use.tensor)] |= use.changes() ? 1 : 0;
    book_.end_use(use.tensor);
  }

  /// It comes into memory of its own, and leaves it at once.
  void use_outside(const StreamedUse& use) {
    const Bytes bytes = step_.places[index(use.tensor)];
    now_ += copies_.in(bytes) + (use.changes() ? copies_.out(bytes) : 0);
    in += bytes;
    out += use.changes() ? bytes : 0;
    book_.used(use.tensor);
  }

  /// It does not outlive the step.
  void lose(StreamedId tensor) {
    book_.lose(tensor);
    dirty_[index(tensor)] = 0;
  }

  /// Its place may still be written from, which the device waits for.
  void make(StreamedId tensor) {
    if (const auto place = book_.bring_made(tensor)) {
      now_ = std::max(now_, make_room(*place));
      dirty_[index(tensor)] = 1;
      there_[index(tensor)] = 0;
      return;
    }
    const Bytes bytes = step_.places[index(tensor)];
    out += bytes;
    now_ += copies_.out(bytes);
  }

  void leave(StreamedId tensor, Bytes offset) {
    const Bytes bytes = step_.places[index(tensor)];
    if (std::exchange(dirty_[index(tensor)], 0) == 0) return;
    out += bytes;
    if (!copies_.overlaps) {
      now_ += copies_.out(bytes);
      return;
    }
    now_ += copies_.own_out(bytes);
    out_free_ = std::max(out_free_, now_) + copies_.out(bytes);
    pending_.push_back({offset, offset + bytes, out_free_});
  }

  /// Returns when nobody copies from or to it any more.
  double make_room(const WindowBook::Place& place) {
    const Bytes end = place.offset + step_.places[index(place.tensor)];
    for (const auto& [other, offset] : place.leave) leave(other, offset);
    double free = now_;
    std::erase_if(pending_, [&](const Pending& p) { return p.until <= now_; });
    for (const Pending& p : pending_) {
      if (p.begin < end && place.offset < p.end) free = std::max(free, p.until);
    }
    return free;
  }

  void come(const WindowBook::Place& place) {
    const Bytes bytes = step_.places[index(place.tensor)];
    double from = make_room(place);
    in += bytes;
    if (!copies_.overlaps) {
      now_ += copies_.in(bytes);
      return;
    }
    now_ += copies_.own_in(bytes);
    from = std::max({from, in_free_, now_});
    there_[index(place.tensor)] = in_free_ = from + copies_.in(bytes);
  }

  static std::size_t index(StreamedId tensor) { return static_cast<std::size_t>(tensor); }

  const StreamedStep& step_;
  const MoveCost& copies_;
  WindowBook book_;
  std::vector<char> dirty_;    // by tensor
  std::vector<double> there_;  // when it is
  std::vector<Pending> pending_;
  double now_ = 0, in_free_ = 0, out_free_ = 0;
};

Bytes all_places(const StreamedStep& step) { return std::accumulate(step.places.begin(), step.places.end(), Bytes{0}); }

}  // namespace

WindowCost window_cost(const StreamedStep& step, Window window, const MoveCost& copies) {
  WindowRun run(step, window, copies);
  constexpr int kUntilSteady = 2;
  for (int i = 0; i < kUntilSteady; ++i) (void)run.run();
  const Bytes in = run.in, out = run.out;
  const double seconds = run.run();
  return {.seconds = seconds, .in = run.in - in, .out = run.out - out};
}

Window cheapest_window(const StreamedStep& step, Bytes bytes, const MoveCost& copies) {
  Window best{.bytes = bytes};
  if (!copies.overlaps || bytes >= all_places(step)) return best;
  double least = window_cost(step, best, copies).seconds;
  for (const Bytes rotating : {bytes, bytes * 3 / 4, bytes / 2, bytes / 4, bytes / 8}) {
    if (rotating < step.at_once) break;
    const Window window{.bytes = bytes, .rotating = rotating};
    const double seconds = window_cost(step, window, copies).seconds;
    if (seconds < least) {
      least = seconds;
      best = window;
    }
  }
  return best;
}

std::vector<Bytes> window_sizes(const StreamedStep& step, Bytes most) {
  constexpr int kSizes = 16;
  const Bytes all = all_places(step);
  std::vector<Bytes> sizes;
  if (step.at_once > most) return sizes;
  const Bytes largest = std::max(step.at_once, std::min(most, all));
  for (int i = 0; i <= kSizes; ++i) {
    const Bytes size = step.at_once + (largest - step.at_once) / kSizes * i;
    if (sizes.empty() || size > sizes.back()) sizes.push_back(size);
  }
  if (sizes.back() < largest) sizes.push_back(largest);
  return sizes;
}

}  // namespace snug::plan
