#pragma once

#include <variant>
#include <vector>

#include "snug/plan/step/ids.h"

namespace snug::plan {

/// The contents that the caller has elsewhere are brought back; the value is cached then.
struct Fetch {
  ValueId value = kNoValue;
  friend bool operator==(const Fetch&, const Fetch&) = default;
};

/// One operator of a replay, and the values that have no further use once it has run. `copies` are the overwritten
/// inputs that must be copied first because they live on; an overwritten input that is not listed is taken over.
struct RunAgain {
  OpId op = kNoOp;
  std::vector<ValueId> drops;
  std::vector<ValueId> copies;
  std::vector<ValueId> read_later;  ///< outputs that later steps of the replay read: not to be evicted until then
  std::vector<ValueId> read_last;   ///< values made in this replay that no later step reads
};

/// What brings a value back, in order: operators as they were recorded, and each fetch in front of the first of them
/// that reads what it brings.
struct ReplaySchedule {
  using Step = std::variant<Fetch, RunAgain>;
  std::vector<Step> steps;
  std::vector<ValueId> sources;  ///< values that the steps read and do not make: resident, or fetched by one
};

}  // namespace snug::plan
