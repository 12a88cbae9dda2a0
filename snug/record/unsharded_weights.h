#pragma once

#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <span>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/dataflow.h"

namespace snug::record {

/// Weights that are there at times, as FSDP2 has them: gathered for a module's forward pass, freed behind it, and
/// gathered again for its backward pass. What operators make of them can be made again while they are there: in the
/// backward pass of the module, or of one around it. So whoever reads it elsewhere has to keep it. Those that are
/// gathered in one range (UnshardRange) come and go together, and are a group.
///
/// Backward passes mostly mirror forward passes: what is there where an operator runs is there where its node runs,
/// too. Where it is not, as where weights stay until a backward pass of a module that was called twice, the backward
/// pass that is recorded tells (Tape::asked_by_backward). Synchronized by the tape's mutex.
class UnshardedWeights {
 public:
  using Group = plan::GroupId;

  [[nodiscard]] bool any() const noexcept { return !storages_.empty(); }
  /// Something gathers into the storage: a weight, or something on the way.
  void gathered(const c10::Storage& storage, Group group);

  /// A leaf in such a storage is read.
  void add_weight(plan::ValueId leaf, const c10::Storage& storage);
  [[nodiscard]] bool is_weight(plan::ValueId value) const { return weights_.find(value) != weights_.end(); }
  /// Of an operator that reads these.
  [[nodiscard]] Group group_of(std::span<const plan::ValueId> inputs) const;
  /// An operator has made the value of these.
  void add_result(plan::ValueId value, std::span<const plan::ValueId> inputs);
  /// Whether all weights that it takes to make the value again are there now.
  [[nodiscard]] bool can_be_made_here(plan::ValueId value) const;
  /// The value is kept from here on: nothing makes it again.
  void kept(plan::ValueId value) {
    needs_.erase(value);
    kept_.insert(value);
  }
  /// Whether it is. What takes its place in its storage, and what is made of it, must be kept as well, then.
  [[nodiscard]] bool is_kept(plan::ValueId value) const { return kept_.find(value) != kept_.end(); }

 private:
  using Groups = c10::SmallVector<Group, 2>;
  struct Weight {
    c10::Storage storage;
    Bytes bytes = 0;
  };
  [[nodiscard]] bool is_there(Group group) const;

  struct Target {
    c10::weak_intrusive_ptr<c10::StorageImpl> identity;  // keeps the address from being another storage's
    Group group = 0;
  };
  ska::flat_hash_map<c10::StorageImpl*, Target> storages_;
  ska::flat_hash_map<plan::ValueId, Group> weights_;
  ska::flat_hash_map<Group, Weight> one_of_;  // by group, a weight of it: all come and go together
  ska::flat_hash_map<plan::ValueId, Groups> needs_;
  ska::flat_hash_set<plan::ValueId> kept_;
};

}  // namespace snug::record
