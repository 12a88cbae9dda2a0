#include "snug/replay/unpacked_originals.h"

#include <algorithm>
#include <utility>

namespace snug::replay {
namespace {

thread_local UnpackedOriginals* t_here = nullptr;

bool show_the_same(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.scalar_type() == b.scalar_type() && a.storage_offset() == b.storage_offset() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.requires_grad() == b.requires_grad() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

}  // namespace

UnpackedOriginals::UnpackedOriginals() : outer_(std::exchange(t_here, this)) {}
UnpackedOriginals::~UnpackedOriginals() { t_here = outer_; }
UnpackedOriginals* UnpackedOriginals::here() noexcept { return t_here; }

at::Tensor UnpackedOriginals::original_of(const at::Tensor& unpacked) const {
  if (!unpacked.defined() || !unpacked.has_storage()) return unpacked;
  const auto found =
      std::ranges::find_if(originals_, [&](const at::Tensor& original) { return show_the_same(original, unpacked); });
  return found == originals_.end() ? unpacked : *found;
}

}  // namespace snug::replay
