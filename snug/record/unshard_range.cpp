#include "snug/record/unshard_range.h"

#include <algorithm>
#include <vector>

namespace snug::record {
namespace {

constexpr std::string_view kMarkOfFsdp = "FSDP::";
constexpr std::string_view kMarkOfCasts = "FSDP::cast_forward";  // of inputs and outputs: operators of the step
constexpr std::string_view kPostBackward = "post_backward";
constexpr std::string_view kFinalizeBackward = "finalize_backward";  // since LibTorch 2.15

struct Range {
  const void* handle;  // LibTorch's: ranges need not end in order
  bool gathers;
};
struct OpenRanges {
  std::vector<Range> all;
  int outermost = 0;
};
thread_local OpenRanges t_ranges;

const void* handle_of(const c10::IValue& range) {
  return range.isCustomClass() || range.isObject() || range.isTensor() ? range.internalToPointer() : nullptr;
}

}  // namespace

void UnshardRange::begun(std::string_view name, const c10::IValue& result) {
  const void* const handle = handle_of(result);
  if (!name.starts_with(kMarkOfFsdp) || name.starts_with(kMarkOfCasts) || handle == nullptr) return;
  if (t_ranges.all.empty()) ++t_ranges.outermost;
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  t_ranges.all.push_back({handle, !has(kPostBackward) && !has(kFinalizeBackward)});
}

void UnshardRange::ended(const c10::IValue& which) {
  if (!t_ranges.all.empty())
    std::erase_if(t_ranges.all, [handle = handle_of(which)](const Range& r) { return r.handle == handle; });
}

bool UnshardRange::here() noexcept { return !t_ranges.all.empty(); }
bool UnshardRange::gathers() noexcept { return !t_ranges.all.empty() && t_ranges.all.back().gathers; }
int UnshardRange::number() noexcept { return t_ranges.outermost; }

}  // namespace snug::record
