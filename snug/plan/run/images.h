#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "snug/plan/run/ledger.h"
#include "snug/plan/step/ids.h"

namespace snug::plan {

/// Keeps the books of images: what a lossy codec has left of values. Where a value has one, saved tensors stand for
/// that and not for the value, of which they need nothing more (see Ledger). An image is encoded, and decoded from when
/// the first of its saved tensors is unpacked until no other waits for that. Tape and simulator share it.
class Images {
 public:
  [[nodiscard]] bool has(ValueId value) const { return entries_.contains(value); }
  void add(ValueId value) { entries_.try_emplace(value); }
  /// The rest is about values that have one. A saved tensor stands for it.
  void pack(ValueId value);
  [[nodiscard]] bool decoded(ValueId value) const { return entries_.at(value).decoded; }
  void set_decoded(ValueId value) { entries_.at(value).decoded = true; }
  /// What goes now.
  struct Gone {
    bool decoded = false;  ///< its decoded contents
    bool image = false;
  };
  /// A saved tensor was unpacked for the first time in this backward pass.
  [[nodiscard]] Gone consume(ValueId value);
  /// A saved tensor was destroyed.
  [[nodiscard]] Gone release(ValueId value, Unpacked unpacked);
  /// A new backward pass: every saved tensor waits to be unpacked again.
  void begin_pass();
  /// It is over. Returns those whose decoded contents go.
  [[nodiscard]] std::vector<ValueId> end_pass();
  /// No operator will save anything more. Returns images that go, as nothing stands for them; from here on they go with
  /// their last saved tensor.
  [[nodiscard]] std::vector<ValueId> settle();

 private:
  struct Entry {
    std::int32_t packs = 0;    // saved tensors that stand for it
    std::int32_t pending = 0;  // of those, that wait to be unpacked
    bool decoded = false;
  };
  /// Whether its decoded contents go, as nobody waits for them.
  static bool drops_decoded(Entry& entry);

  std::unordered_map<ValueId, Entry> entries_;
  bool settled_ = false;
};

}  // namespace snug::plan
