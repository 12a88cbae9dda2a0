#include "snug/record/verified_contents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/hash.h"

namespace snug::record {
namespace {

std::uint64_t hash_of(std::uint64_t place, std::uint64_t operators, std::uint64_t value) {
  const std::array<std::uint64_t, 3> words{place, operators, value};
  return hash_64(std::as_bytes(std::span(words)));
}

}  // namespace

void VerifiedContents::note(plan::ValueId value, const View& view) {
  if (how_ == VerifyReplay::Off) return;
  const plan::Dataflow& flow = values_.flow();
  const plan::OpId op = flow.producer(value);
  if (op == plan::kNoOp) return;
  const auto outputs = flow.outputs(op);
  const auto index = std::ranges::find(outputs, value, &plan::Output::value) - outputs.begin();
  const Call& call = calls_.call(op);
  const OutputSlot& slot = calls_.output_slot(call, static_cast<std::size_t>(index));
  if (!slot.is_argument && call.traits->scratch_result == slot.position) return;
  std::uint64_t key = 0;
  if (how_ == VerifyReplay::Once) {
    key = hash_of(place_, calls_.chain(), static_cast<std::uint64_t>(value));
    if (compared_->contains(key)) return;
  }
  verified_.emplace(value, Verified{view, key, {}});
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
    const VerifyReplay how = how_ == VerifyReplay::Values ? how_ : VerifyReplay::Hashes;
    found->second.then.emplace(calls_.geometry().tensor(found->second.view, storage), how);
  } catch (...) {  // no memory for a copy of what does not lie densely: it goes unverified
  }
}

bool VerifiedContents::compares(plan::ValueId value) const {
  if (how_ == VerifyReplay::Off) return false;
  const auto found = verified_.find(value);
  return found != verified_.end() && found->second.then;
}

/// The operators that the value was recomputed with and that may be to blame.
std::string VerifiedContents::cause_of(plan::ValueId value) const {
  constexpr std::size_t kMostNamed = 3;
  const plan::Dataflow& flow = values_.flow();
  std::set<plan::OpId> seen, foreign;
  std::vector<plan::OpId> next{flow.producer(value)};
  while (!next.empty()) {
    const plan::OpId op = next.back();
    next.pop_back();
    if (op == plan::kNoOp || !seen.insert(op).second) continue;
    if (calls_.call(op).traits->foreign) foreign.insert(op);
    for (const plan::ValueId input : flow.inputs(op)) {
      if (!flow.is_leaf(input) && !values_.ledger().held(input)) next.push_back(flow.producer(input));
    }
  }
  if (foreign.empty()) {
    return fmt::format(
        "only operators of PyTorch lead to it, so something that PyTorch does not see wrote to their results, as "
        "NumPy, "
        "ctypes or a compiled kernel does, or the operator does not repeat its bits; keep what they make: "
        "snug.Region(snug.Selective(keep=[\"{}\"])), or register the kernel as an operator",
        calls_.call(flow.producer(value)).traits->name);
  }
  std::vector<std::string> names;
  for (const plan::OpId op : foreign) {
    if (names.size() < kMostNamed) names.push_back(calls_.describe(op));
  }
  const std::string& name = calls_.call(*foreign.begin()).traits->name;
  return fmt::format(
      "it was recomputed with {}{}, which must not depend on anything but its arguments; if it keeps a state, say so, "
      "and "
      "it runs once: snug.declare_operator(\"{}\", keeps_state=True); if it writes to an argument: writes=[its "
      "position]",
      fmt::join(names, ", "), foreign.size() > kMostNamed ? ", ..." : "", name.substr(0, name.find('.')));
}

void VerifiedContents::check(plan::ValueId value, const c10::Storage& made) {
  if (!compares(value)) return;
  const auto found = verified_.find(value);
  const at::Tensor now = calls_.geometry().tensor(found->second.view, made);
  const auto difference = found->second.then->difference(now);
  ++count_;
  if (!difference) {
    if (how_ == VerifyReplay::Once) {
      compared_->add(found->second.key);
      verified_.erase(found);
    }
    return;
  }
  differed_ = true;
  const plan::OpId op = values_.flow().producer(value);
  throw Error(fmt::format(
      "verify_replay: {} made other bits than in forward: of its result of {}, the first difference is in {}; {}",
      calls_.describe(op), format_bytes(static_cast<Bytes>(now.nbytes())), *difference, cause_of(value)));
}

}  // namespace snug::record
