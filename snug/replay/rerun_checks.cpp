#include "snug/replay/rerun_checks.h"

#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/record/contents_hash.h"
#include "snug/record/leaf_names.h"
#include "snug/replay/operator_log.h"

namespace snug::replay {

std::vector<std::string>* RerunChecks::log(record::Run run) {
  if (!debug_) return nullptr;
  return run == record::Run::Again ? &rerun_operators_ : &forward_operators_;
}

std::string RerunChecks::where_they_part() const {
  if (!debug_) return "; Rerun{.debug = true} tells where it does not";
  return "; " + replay::where_they_part(forward_operators_, rerun_operators_);
}

void RerunChecks::remember_contents(SavedPlace& place, const at::Tensor& forward) const {
  if (compares_contents()) place.set_hash(record::contents_hash(forward));
}

void RerunChecks::check_contents(const SavedPlace& place, const at::Tensor& rerun, Position position) const {
  if (!compares_contents()) return;
  const std::uint64_t hash = record::contents_hash(rerun);
  // Memory that outlives the function is what it is: running statistics, which the first run has moved.
  const void* storage = rerun.has_storage() ? rerun.storage().unsafeGetStorageImpl() : nullptr;
  const bool outlives = storage != nullptr && storage == place.look().storage;
  if (outlives || !place.hash() || hash == *place.hash()) return;
  throw Error(fmt::format(
      "checkpoint: saved tensor {} of {} ({}) holds other values when the function runs again: it must compute the "
      "same both times; what it draws at random must come from LibTorch's default generators",
      position.index + 1, position.count, place.look().metadata()));
}

void RerunChecks::check_metadata(const SavedLook& forward, const SavedLook& rerun, Position position) const {
  if (determinism_ == DeterminismCheck::None || rerun.same_metadata(forward)) return;
  throw Error(fmt::format(
      "checkpoint: saved tensor {} of {} was {} in forward and is {} when the function runs again: it must compute "
      "the same both times{}",
      position.index + 1, position.count, forward.metadata(), rerun.metadata(), where_they_part()));
}

void RerunChecks::check_unmodified(const SavedLook& forward, const SavedLook& rerun, const at::Tensor& tensor,
                                   Position position) const {
  const bool same_storage = rerun.storage != nullptr && rerun.storage == forward.storage;
  if (!same_storage || !rerun.version || !forward.version || *rerun.version == *forward.version) return;
  throw Error(fmt::format(
      "checkpoint: {}, saved tensor {} of {}, was modified in place since the forward pass (version {} then, {} "
      "now): its gradient would be wrong; modify it after backward",
      record::leaf_name(tensor.storage().unsafeGetStorageImpl(), static_cast<Bytes>(tensor.storage().nbytes())),
      position.index + 1, position.count, *forward.version, *rerun.version));
}

void RerunChecks::check_count(std::size_t forward, std::size_t rerun) const {
  if (rerun == forward) return;
  throw Error(fmt::format(
      "checkpoint: the function saved {} tensors in forward and {} when it ran again: it must compute the same both "
      "times{}",
      forward, rerun, where_they_part()));
}

void RerunChecks::refuse_more_than(std::size_t forward) const {
  throw Error(fmt::format(
      "checkpoint: the function saved {} tensors in forward and is saving more than that when it runs again: it must "
      "compute the same both times{}",
      forward, where_they_part()));
}

void RerunChecks::refuse_missing() const {
  throw Error(
      "checkpoint: the function left before it saved what backward asks for: it must compute the same both times" +
      where_they_part());
}

}  // namespace snug::replay
