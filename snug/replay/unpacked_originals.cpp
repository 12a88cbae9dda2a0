#include "snug/replay/unpacked_originals.h"

#include <c10/util/ScopeExit.h>

#include <atomic>

#include "snug/base/errors.h"

namespace snug::replay {
namespace {

thread_local UnpackedOriginals* t_here = nullptr;
std::atomic<std::shared_ptr<void> (*)(const at::Tensor&)> s_look = nullptr;

}  // namespace

UnpackedOriginals::UnpackedOriginals() : outer_(std::exchange(t_here, this)) {}
UnpackedOriginals::~UnpackedOriginals() { t_here = outer_; }

void set_look(std::shared_ptr<void> (*look)(const at::Tensor&)) noexcept { s_look = look; }

void CollectedHooks::call_pack_hook(const at::Tensor& tensor) {
  if (const auto look = s_look.load()) look_ = look(tensor);
  try {
    pack(tensor);
  } catch (const Error&) {
    throw_into_libtorch();
  }
}

at::Tensor CollectedHooks::call_unpack_hook() {
  // A function that a checkpoint calls again may run backward passes.
  UnpackedOriginals* const here = std::exchange(t_here, nullptr);
  const auto collect_again = c10::make_scope_exit([here] { t_here = here; });
  try {
    at::Tensor unpacked = unpack();
    if (here != nullptr) here->originals_.push_back({original(unpacked), look_});
    return unpacked;
  } catch (const Error&) {
    throw_into_libtorch();
  }
}

}  // namespace snug::replay
