#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/range_heap.h"

namespace snug::plan {

/// A tensor whose contents come and go, by number from 0.
using StreamedId = std::int32_t;

/// A part of a device's memory in which tensors lie while operators use them.
struct Window {
  Bytes bytes = 0;
  /// Of them, for tensors that come ahead of their use and go after it; the rest has the same ones from step to step,
  /// as far as their order is known. 0: none comes ahead.
  Bytes rotating = 0;
  friend bool operator==(const Window&, const Window&) = default;
};

/// One use of a tensor.
struct StreamedUse {
  enum class Does : std::uint8_t {
    Reads,
    Writes,  ///< in place
    Makes,   ///< all of it, elsewhere in the device's memory, from where its contents come
  };
  StreamedId tensor = 0;
  Does does = Does::Reads;

  [[nodiscard]] bool changes() const { return does != Does::Reads; }
  friend bool operator==(const StreamedUse&, const StreamedUse&) = default;
};

/// The books of a window: the contents of tensors that are not in it are elsewhere. Says where one that comes lies,
/// which ones make room for it, and which comes ahead of its use. Where the order of uses is known, those leave that
/// are used last (Belady, IBM Systems Journal 5(2), 1966), and none comes ahead in the place of one that is used sooner
/// (Cao et al., SIGMETRICS 1995). Among more than a few hundred that are in the window only those that are used last,
/// and their neighbours, are asked to leave: each use takes a time that grows with the logarithm of the tensors and
/// uses. The run and its prediction share it. Not synchronized.
class WindowBook {
 public:
  explicit WindowBook(Window window) : window_(window), others_(window.bytes) { free_.give(0, window.bytes); }

  /// A tensor of so many bytes, more than 0, as the window's places are rounded: it is elsewhere.
  StreamedId add(Bytes bytes);
  /// It is gone for good. Its number is not used again.
  void remove(StreamedId tensor);

  /// All are elsewhere from here on, and there is another window. None may be in use.
  void resize(Window window);

  /// From a step's beginning on tensors are used in this order, again and again.
  void expect(const std::vector<StreamedUse>& order);
  /// A step begins.
  void restart();

  /// An operator begins to use it, or ends: it must not leave in between.
  void begin_use(StreamedId tensor) { ++entry(tensor).users; }
  void end_use(StreamedId tensor) { --entry(tensor).users; }

  /// It is used now: the step has come as far as that use.
  void used(StreamedId tensor);

  [[nodiscard]] bool inside(StreamedId tensor) const { return entry(tensor).offset != kElsewhere; }
  /// Of one that is inside.
  [[nodiscard]] Bytes offset(StreamedId tensor) const { return entry(tensor).offset; }
  [[nodiscard]] Bytes bytes(StreamedId tensor) const { return entry(tensor).bytes; }
  [[nodiscard]] Window window() const noexcept { return window_; }

  /// Room that is made for a tensor: it is inside from here on, and those that leave, from where they were, elsewhere.
  struct Place {
    struct Left {
      StreamedId tensor = 0;
      Bytes offset = 0;
      friend bool operator==(const Left&, const Left&) = default;
    };
    StreamedId tensor = 0;
    Bytes offset = 0;
    std::vector<Left> leave;
    friend bool operator==(const Place&, const Place&) = default;
  };
  /// For a tensor that is elsewhere and is about to be used. None: those that must not leave are in the way.
  std::optional<Place> bring(StreamedId tensor);
  /// Whether there is one.
  [[nodiscard]] bool has_place_for(StreamedId tensor) const { return find_anywhere(tensor).has_value(); }
  /// For one of some tensors that are used together, all elsewhere before the first of them: behind those before it,
  /// from the window's beginning.
  std::optional<Place> bring_beside(StreamedId tensor, const std::vector<StreamedId>& all);
  /// For the next in the order that is elsewhere, if only such leave as are used after it.
  std::optional<Place> bring_ahead();
  /// It has no contents any more, anywhere, until it is made: it is elsewhere, and does not come.
  void lose(StreamedId tensor);
  /// For a tensor that is elsewhere and has been made, if only such leave as are used after it.
  std::optional<Place> bring_made(StreamedId tensor);
  /// It does not come ahead from here on, as it is in use somewhere else, or may again.
  void stay_out(StreamedId tensor) {
    entry(tensor).out = true;
    note_waiting(tensor);
  }
  void may_come(StreamedId tensor) {
    entry(tensor).out = false;
    note_waiting(tensor);
  }
  /// It could not come, and is elsewhere as before.
  void take_back(StreamedId tensor) { leave(tensor); }

 private:
  static constexpr Bytes kElsewhere = -1;
  static constexpr std::size_t kUnknown = static_cast<std::size_t>(-1);
  /// Of one that is inside, and has no place of its own: in which use from the beginning on it is used next, and how
  /// long it has not been used. The greatest leaves first.
  struct Rank {
    std::size_t next = kUnknown;
    std::uint64_t unused = 0;
    StreamedId tensor = 0;
    friend bool operator<(const Rank& a, const Rank& b) {
      return std::tie(a.next, a.unused, a.tensor) < std::tie(b.next, b.unused, b.tensor);
    }
  };
  struct Entry {
    Bytes bytes = 0;
    Bytes offset = kElsewhere;
    std::int32_t users = 0;
    Bytes own_place = kElsewhere;     // of one that stays
    bool empty = false;               // until it is made
    bool out = false;                 // see stay_out
    bool written = false;             // in each step
    std::uint64_t last_use = 0;       // by clock_
    std::vector<std::size_t> uses{};  // positions in order_
    Rank rank{};                      // in by_rank_, while it is inside
  };
  struct Score {
    std::size_t distance = kUnknown;  // until the first of those that leave is used
    std::uint64_t last_use = 0;       // of those that are as far, the youngest
    [[nodiscard]] bool better_than(const Score& other) const {
      return distance != other.distance ? distance > other.distance : last_use < other.last_use;
    }
  };
  /// Where a tensor may lie in [begin, end), and when those are needed that may leave for it.
  struct Search {
    Bytes bytes = 0, begin = 0, end = 0;
    std::optional<std::size_t> sooner{};
  };
  struct Found {
    Place place;
    Score score;
  };
  Entry& entry(StreamedId tensor) { return all_[static_cast<std::size_t>(tensor)]; }
  [[nodiscard]] const Entry& entry(StreamedId tensor) const { return all_[static_cast<std::size_t>(tensor)]; }
  /// In how many uses from now it is used again.
  [[nodiscard]] std::size_t distance(const Entry& e) const;
  void note_uses();
  /// Whether it may come ahead.
  void note_waiting(StreamedId tensor);
  void note_rank(StreamedId tensor);
  /// Uses of those that were removed go, of all at once.
  void forget_removed();
  void choose_who_stays();
  void place_who_stays();
  [[nodiscard]] bool may_leave(const Entry& e, const Search& search) const;
  /// The best of all places; the first of equals.
  [[nodiscard]] std::optional<Found> best_of_all(const Search& search) const;
  /// A free place, or the best beside those that are used last.
  [[nodiscard]] std::optional<Found> best_of_farthest(const Search& search) const;
  using Inside = std::map<Bytes, StreamedId>;
  /// In the place of that one and of those behind it, as many as it takes.
  [[nodiscard]] std::optional<Found> from(Inside::const_iterator first, const Search& search) const;
  /// The last one from which it would reach behind that one.
  [[nodiscard]] std::optional<Inside::const_iterator> reaching(Inside::const_iterator last, const Search& search) const;
  [[nodiscard]] Bytes end_before(Inside::const_iterator slot, const Search& search) const;
  /// The best place in [begin, end), where none leaves that is in use, nor one that is used within `sooner` uses.
  [[nodiscard]] std::optional<Place> find(StreamedId tensor, Bytes begin, Bytes end,
                                          std::optional<std::size_t> sooner) const;
  /// The same where it belongs; anywhere.
  [[nodiscard]] std::optional<Place> find(StreamedId tensor, std::optional<std::size_t> sooner) const;
  [[nodiscard]] std::optional<Place> find_anywhere(StreamedId tensor) const;
  std::optional<Place> take(std::optional<Place> place);
  void leave(StreamedId tensor);

  Window window_;
  Bytes others_;  // of the window, from its beginning, for those that do not stay
  std::vector<Entry> all_;
  Inside inside_;           // by offset
  std::set<Rank> by_rank_;  // the same
  RangeHeap free_;          // of the window
  std::vector<StreamedUse> order_;
  std::set<std::size_t> waiting_;  // uses of those that are elsewhere, and may come ahead
  std::size_t next_ = 0;           // of order_
  std::size_t begun_ = 0;          // uses before this round of the order
  std::uint64_t clock_ = 0;
  bool removed_ = false;  // order_ has uses of those that are gone
};

}  // namespace snug::plan
