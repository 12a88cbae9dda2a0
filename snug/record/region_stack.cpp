#include "snug/record/region_stack.h"

#include <utility>

#include "snug/base/module_scope.h"

namespace snug::record {

using plan::at;

void RegionStack::open(plan::Dataflow& flow, RegionTerms terms) {
  const plan::SegmentId parent = segment();
  const plan::SegmentId own = flow.open_segment(parent);
  segments_.resize(at(own) + 1);
  segments_[at(own)] = {terms.recompute, terms.recompute || covered(parent)};
  open_.push_back({own, std::move(terms)});
}

void RegionStack::open_in_plan(RegionTerms terms) { open_.push_back({segment(), std::move(terms)}); }

void RegionStack::add_planned_segments(plan::SegmentId segments) {
  if (at(segments) > segments_.size()) segments_.resize(at(segments));
}

RegionVerdict RegionStack::ask(const OperatorTraits& traits) {
  Open& region = open_.back();
  if (!region.terms.policy) return {};
  switch (region.terms.policy({traits.name, current_module(), region.invocations[&traits]++})) {
    case Choice::MustKeep:
      return {.must = plan::Must::Keep};
    case Choice::MustRecompute:
      return {.must = plan::Must::Recompute};
    case Choice::PreferKeep:
      return {.preferred = plan::kKeep};
    case Choice::Offload:
      return {.preferred = plan::kMove};
    case Choice::PreferRecompute:
      break;
  }
  return {};
}

bool RegionStack::escapes(const plan::Dataflow& flow, plan::ValueId value) const {
  if (flow.segments() == 1 || flow.is_leaf(value)) return false;
  const plan::SegmentId born = flow.segment(flow.producer(value));
  const plan::SegmentId here = segment();
  if (born == here) return false;
  if (covered(flow.common_segment(born, here))) return false;
  return covered(born) || covered(here);
}

bool RegionStack::keeps_when_saved(const plan::Dataflow& flow, plan::ValueId value, plan::Must must) const {
  if (must == plan::Must::Recompute) return escapes(flow, value);
  return !segments_[at(flow.segment(flow.producer(value)))].recompute || escapes(flow, value);
}

}  // namespace snug::record
