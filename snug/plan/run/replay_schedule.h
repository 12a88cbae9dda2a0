#pragma once

#include <memory>
#include <span>
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
/// The values are in the schedule, which must live as long.
struct RunAgain {
  OpId op = kNoOp;
  std::span<const ValueId> drops;
  std::span<const ValueId> copies;
  std::span<const ValueId> read_later;  ///< outputs that later steps of the replay read: not to be evicted until then
  std::span<const ValueId> read_last;   ///< values made in this replay that no later step reads
};

/// What brings a value back, in order: operators as they were recorded, and each fetch in front of the first of them
/// that reads what it brings.
struct ReplaySchedule {
  using Step = std::variant<Fetch, RunAgain>;
  std::vector<Step> steps;
  std::span<const ValueId> sources;         ///< values that the steps read and do not make: resident, or fetched by one
  std::shared_ptr<const ValueId[]> values;  ///< of all lists, in one piece: searches make millions of schedules
};

}  // namespace snug::plan
