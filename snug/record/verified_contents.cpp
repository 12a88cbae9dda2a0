#include "snug/record/verified_contents.h"

#include <fmt/format.h>

#include <algorithm>

#include "snug/base/errors.h"

namespace snug::record {

void VerifiedContents::note(plan::ValueId value, const View& view) {
  if (how_ == VerifyReplay::Off) return;
  const plan::Dataflow& flow = values_.flow();
  const plan::OpId op = flow.producer(value);
  if (op == plan::kNoOp) return;
  const auto outputs = flow.outputs(op);
  const auto index = std::ranges::find(outputs, value, &plan::Output::value) - outputs.begin();
  const Call& call = calls_.call(op);
  const OutputSlot& slot = calls_.output_slot(call, static_cast<std::size_t>(index));
  if (slot.is_argument || call.traits->scratch_result != slot.position)
    verified_.try_emplace(value, Verified{view, {}});
}

bool VerifiedContents::remembers(plan::ValueId value) const {
  if (how_ == VerifyReplay::Off) return false;
  const auto found = verified_.find(value);
  return found != verified_.end() && !found->second.then;
}

void VerifiedContents::remember(plan::ValueId value, const c10::Storage& storage) {
  if (!remembers(value)) return;
  const auto found = verified_.find(value);
  try {
    found->second.then.emplace(calls_.geometry().tensor(found->second.view, storage), how_);
  } catch (...) {  // no memory for a copy of what does not lie densely: it goes unverified
  }
}

bool VerifiedContents::compares(plan::ValueId value) const {
  if (how_ == VerifyReplay::Off) return false;
  const auto found = verified_.find(value);
  return found != verified_.end() && found->second.then;
}

void VerifiedContents::check(plan::ValueId value, const c10::Storage& made) const {
  if (!compares(value)) return;
  const auto found = verified_.find(value);
  const at::Tensor now = calls_.geometry().tensor(found->second.view, made);
  const auto difference = found->second.then->difference(now);
  if (!difference) return;
  const plan::OpId op = values_.flow().producer(value);
  throw Error(fmt::format(
      "verify_replay: {} made other bits than in forward: of its result of {}, the first difference is in "
      "{}; what does not repeat itself must be kept: snug::Region(snug::Selective{{.keep = {{\"{}\"}}}})",
      calls_.describe(op), format_bytes(static_cast<Bytes>(now.nbytes())), *difference, calls_.call(op).traits->name));
}

}  // namespace snug::record
