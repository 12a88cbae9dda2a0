#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/range_heap.h"
#include "snug/memory/stream_mark.h"

namespace snug::memory {

class Supply;

/// A range of an accelerator's memory in which others lie at places that somebody has chosen: steps ask for the same
/// blocks in the same order each time, so whoever has seen one can say where the blocks of the next are to lie. What is
/// asked for in another order lies where there is room. Serves the stream in which a step begins, and the thread, with
/// the threads of autograd: when others ask, as who loads batches, is chance. What other streams use of it
/// (record_stream()) is waited for before it is another's. Any thread.
class Arena {
 public:
  static constexpr Bytes kElsewhere = -1;
  static constexpr std::int64_t kStays = std::numeric_limits<std::int64_t>::max();
  static constexpr std::size_t kMostAsked = 250'000;  ///< that are noted of a step, with all that comes after it

  /// What was asked for.
  struct Asked {
    Bytes bytes = 0;
    std::int64_t until = kStays;  ///< how much had been asked for when it was given back
  };
  /// Where what is asked for is to lie.
  struct Place {
    Bytes bytes = 0;
    Bytes offset = kElsewhere;
  };
  using Places = std::vector<Place>;

  /// `supply`: of its memory. It must outlive this.
  Arena(c10::Device device, Supply& supply) : device_(device), supply_(supply) {}
  /// Nothing lies there any more.
  /// Waits for who may use it still.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A step is over: returns all that was asked for since it began; nothing where that was too much.
  std::vector<Asked> end();
  /// No more steps begin: what the supply has no room for may lie there as long as something does.
  void close();
  /// A step begins. As long as what is asked for agrees with one of `known`, it gets the places of the first that does;
  /// then, and where none does, a place where there is room.
  void begin(std::vector<std::shared_ptr<const Places>> known);

  /// Makes the range `bytes` long, or of what the supply has within `limit`, once it has given back what it keeps.
  /// False and nothing is done where something lies there.
  bool resize(Bytes bytes, std::optional<Bytes> limit);

  /// Offsets and bytes of what lies there now, by offset.
  [[nodiscard]] std::vector<std::pair<Bytes, Bytes>> occupied() const;

  struct Stats {
    Bytes bytes = 0;             ///< of the range
    std::int64_t placed = 0;     ///< blocks since the step began, at places that were chosen
    std::int64_t elsewhere = 0;  ///< others since then, but for those behind the end of an order that is known
  };
  [[nodiscard]] Stats stats() const;

  // For AcceleratorMemory.
  struct Request {
    Bytes bytes = 0;
    std::uint64_t step = 0;  // in which it was made; 0: it has no part in one
    std::size_t place = 0;   // in the order of that
    bool counted = false;
  };
  /// A block of so many bytes, as the supply rounds them, is asked for.
  Request ask(Bytes bytes);
  /// Its place; nullptr where it lies elsewhere.
  void* take(Request& request);
  /// The supply has none left: any place, or nullptr.
  void* take_any(const Request& request);
  /// It lies elsewhere, at this address.
  void lies_at(const Request& request, const void* data);
  /// What lies here, at this address, is given back. Must not throw.
  void give(const void* data) noexcept;
  /// What lies elsewhere, at this address, was given back.
  void gone(const void* data) noexcept;
  /// What another stream does with it ends before it is another's. False: it does not lie here.
  bool record_stream(const void* data, c10::Stream stream);

 private:
  struct Here {
    Bytes offset = 0, bytes = 0;
    std::vector<c10::Stream> used_by{};
  };
  /// A part that other streams may be using still.
  struct InUse {
    Bytes offset = 0, bytes = 0;
    StreamMark mark;
  };

  /// The range, and who may use it.
  struct Base {
    void* data = nullptr;
    std::vector<InUse> in_use{};
    std::optional<c10::Stream> stream{};
  };
  Base take_out();
  void give_back(const Base& base);
  void note_end(const void* data);
  [[nodiscard]] bool serves() const;
  [[nodiscard]] bool agrees_with_known(const Request& request);
  void* put_anywhere(const Request& request);
  void* put(const Request& request, Bytes offset);
  void wait_for_others(Bytes offset, Bytes bytes);

  const c10::Device device_;
  Supply& supply_;
  mutable std::mutex mutex_;
  void* base_ = nullptr;
  Bytes bytes_ = 0;
  RangeHeap free_;
  std::vector<InUse> in_use_;
  std::unordered_map<const void*, Here> here_;
  std::optional<c10::Stream> stream_;  // of the step
  std::uint64_t step_ = 1;
  std::thread::id thread_;                             // of the step
  std::vector<Asked> asked_;                           // since it began
  std::unordered_map<const void*, std::size_t> open_;  // of that, what is there
  std::vector<std::shared_ptr<const Places>> known_;   // that agree so far
  bool closed_ = false;
  bool at_end_ = false;  // all that one of them has was asked for
  std::int64_t placed_ = 0, elsewhere_ = 0;
};

}  // namespace snug::memory
