#pragma once

#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/record/call_log.h"
#include "snug/record/tape_observer.h"
#include "snug/record/value_store.h"
#include "snug/record/version_tracker.h"

namespace snug::record {

/// Contents that no recorded operator made: they cannot be made again, and are kept.
struct Opaque {
  enum class Case : std::uint8_t {
    Filled,      ///< the operator made memory without contents (empty), and something unseen filled it
    WrittenOver  ///< something unseen has written over the operator's result
  };
  std::string operation;  ///< the operator that made the storage: its name, number and module
  Bytes bytes = 0;
  Case what = Case::Filled;
};

/// Tells which value a tensor's contents are. What something unseen has written since a value was recorded is another
/// value, a leaf, and the one before it is lost; this is found out here, when a tensor is read: by version, and of
/// leaves that are watched by what is in their memory, as NumPy and others who share it raise no version.
/// Synchronized by the tape's mutex.
class ValueLookup {
 public:
  ValueLookup(ValueStore& values, VersionTracker& versions, const CallLog& calls, const TapeObservers& observers)
      : values_(values), versions_(versions), calls_(calls), observers_(observers) {}

  /// The value of a storage that is read or written through a tensor with this version. Held if it is a leaf.
  plan::ValueId value_of(const c10::Storage& storage, const VersionNow& reader);
  /// Somebody else fills the storage until filled() is called, as the result of a collective until it is waited for: it
  /// is one value, however many versions and contents it is seen with meanwhile, through views.
  void being_filled(const c10::Storage& storage);
  void filled(const c10::Storage& storage);
  /// The value, a leaf on the CPU, is in this storage as its reader needs it.
  void watch(plan::ValueId leaf, const c10::Storage& storage);
  /// For a value that is read though nothing that was seen has written it: something else must have filled it, so that
  /// it cannot be made again.
  void make_leaf(plan::ValueId value, const VersionNow& reader);
  /// Lists an operator's result in opaque(). To be called before make_leaf(), after which the value has no operator.
  void report(plan::ValueId value, Opaque::Case what);
  /// Something unseen has written over the value: an operator's result is absent from here on.
  void displace(plan::ValueId value);
  /// Lets go of results that something unseen has written over, so that they are made again where they are read.
  void notice_writes();

  /// Whether something that is not recorded has written the value, by its version counters.
  [[nodiscard]] bool written_since(plan::ValueId value) const;
  /// Throws Error naming the operator and the tensor when something that `op` reads, and that the program could reach,
  /// has been written since it was recorded.
  void check_inputs(plan::OpId op) const;

  /// What messages call a value.
  [[nodiscard]] std::string name_of(plan::ValueId value) const;
  /// What is kept because something outside of ATen filled it, in the order of the recording.
  [[nodiscard]] const std::vector<Opaque>& opaque() const noexcept { return opaque_; }

 private:
  [[nodiscard]] bool is_being_filled(const c10::Storage& storage) const;
  [[nodiscard]] bool refilled(plan::ValueId value, const c10::Storage& storage) const;
  bool accepts(plan::ValueId value, const VersionNow& reader);
  [[nodiscard]] bool can_be_lost(plan::ValueId value) const;

  ValueStore& values_;
  VersionTracker& versions_;
  const CallLog& calls_;
  const TapeObservers& observers_;
  std::vector<Opaque> opaque_;
  ska::flat_hash_map<plan::ValueId, std::uint64_t> samples_;  // of what is watched
  // Weak pointers keep the addresses from being another storage's.
  ska::flat_hash_map<c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> being_filled_;
};

}  // namespace snug::record
