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

template <class... Values>
std::uint64_t hash_of(Values... values) {
  const std::array<std::uint64_t, sizeof...(Values)> words{static_cast<std::uint64_t>(values)...};
  return hash_64(std::as_bytes(std::span(words)));
}

}  // namespace

std::uint64_t VerifiedContents::key_of(plan::ValueId value, std::uint64_t chain, const View& view) const {
  const auto sizes = calls_.geometry().sizes(view), strides = calls_.geometry().strides(view);
  return hash_of(place_, chain, value, view.offset, view.dtype, hash_64(std::as_bytes(std::span(sizes))),
                 hash_64(std::as_bytes(std::span(strides))));
}

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
  Verified& verified = verified_[value];
  if (verified.shown.empty()) verified.chain = calls_.chain();
  const std::uint64_t key = key_of(value, verified.chain, view);
  if (std::ranges::find(verified.shown, key, &Shown::key) != verified.shown.end()) return;
  Shown& shown = verified.shown.emplace_back(Shown{view, key, NotDropped{}});
  if (how_ == VerifyReplay::Once && compared_->contains(key)) shown.contents = Compared{};
}

template <class Contents>
bool VerifiedContents::any(plan::ValueId value) const {
  if (how_ == VerifyReplay::Off) return false;
  const auto found = verified_.find(value);
  return found != verified_.end() && std::ranges::any_of(found->second.shown, [](const Shown& shown) {
           return std::holds_alternative<Contents>(shown.contents);
         });
}

bool VerifiedContents::remembers(plan::ValueId value) const { return any<NotDropped>(value); }
bool VerifiedContents::compares(plan::ValueId value) const { return any<Remembered>(value); }

void VerifiedContents::remember(plan::ValueId value, const c10::Storage& storage) {
  if (!remembers(value)) return;
  const VerifyReplay how = how_ == VerifyReplay::Values ? how_ : VerifyReplay::Hashes;
  for (Shown& shown : verified_.find(value)->second.shown) {
    if (!std::holds_alternative<NotDropped>(shown.contents)) continue;
    try {
      shown.contents = Remembered(calls_.geometry().tensor(shown.view, storage), how);
    } catch (...) {  // no memory on the host: the value is not compared
    }
  }
}

void VerifiedContents::saved(plan::ValueId value, const View& view, const c10::Storage& storage) {
  const Verified& verified = verified_.find(value)->second;
  const auto shown = std::ranges::find(verified.shown, key_of(value, verified.chain, view), &Shown::key);
  const auto* const then = shown != verified.shown.end() ? std::get_if<Remembered>(&shown->contents) : nullptr;
  if (then != nullptr) {
    if (const auto difference = then->difference(calls_.geometry().tensor(view, storage))) {
      differed_ = true;
      const Call& call = calls_.call(values_.flow().producer(value));
      throw Error(fmt::format(
          "verify_replay: a result of {} was saved for backward twice and written in between without a new version, as "
          "NumPy, ctypes or a compiled kernel does; the first difference is in {}; keep the result: "
          "snug.Region(snug.Selective(keep=[\"{}\"])), or write to a clone",
          calls_.describe(values_.flow().producer(value)), *difference, call.traits->name));
    }
  }
  remember(value, storage);
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
        "NumPy, ctypes or a compiled kernel does, or the operator does not repeat its bits; keep what they make: "
        "snug.Region(snug.Selective(keep=[\"{}\"])), or register the kernel as an operator",
        calls_.call(flow.producer(value)).traits->name);
  }
  std::vector<std::string> names;
  for (const plan::OpId op : foreign) {
    if (names.size() < kMostNamed) names.push_back(calls_.describe(op));
  }
  const std::string& name = calls_.call(*foreign.begin()).traits->name;
  return fmt::format(
      "it was recomputed with {}{}, which must not depend on anything but its arguments; if it keeps a state, declare "
      "that, and it runs once: snug.declare_operator(\"{}\", keeps_state=True); if it writes to an argument: "
      "writes=[its position]",
      fmt::join(names, ", "), foreign.size() > kMostNamed ? ", ..." : "", name.substr(0, name.find('.')));
}

void VerifiedContents::check(plan::ValueId value, const c10::Storage& made) {
  if (!compares(value)) return;
  ++count_;
  for (Shown& shown : verified_.find(value)->second.shown) {
    const auto* const then = std::get_if<Remembered>(&shown.contents);
    if (then == nullptr) continue;
    const at::Tensor now = calls_.geometry().tensor(shown.view, made);
    if (const auto difference = then->difference(now)) {
      differed_ = true;
      throw Error(fmt::format(
          "verify_replay: {} made other bits than in forward: of its result of {}, the first difference is in {}; {}{}",
          calls_.describe(values_.flow().producer(value)), format_bytes(static_cast<Bytes>(now.nbytes())), *difference,
          cause_of(value),
          how_ == VerifyReplay::Once && compared_->has_had(shown.key)
              ? "; when it was compared before, at this place, it had the same bits, so that gradients since may be "
                "wrong"
              : ""));
    }
    if (how_ != VerifyReplay::Once) continue;  // compared again where it is recomputed again
    compared_->add(shown.key);
    shown.contents = Compared{};
  }
}

}  // namespace snug::record
