#include "snug/record/autocast_state.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace snug::record {

AutocastState AutocastState::now() {
  AutocastState state;
  const auto add = [&](c10::DeviceType type) {
    if (!at::autocast::is_autocast_available(type)) return;
    state.devices[state.count++] = {type, at::autocast::is_autocast_enabled(type),
                                    at::autocast::get_autocast_dtype(type)};
  };
  add(c10::kCPU);
  if (const auto accelerator = at::getAccelerator()) add(*accelerator);
  state.cache = at::autocast::is_autocast_cache_enabled();
  return state;
}

bool AutocastState::any_enabled() noexcept {
  // LibTorch turns autocast off by excluding its keys.
  return !c10::impl::tls_local_dispatch_key_set().excluded_.has_all(c10::autocast_dispatch_keyset);
}

void AutocastState::set() const {
  for (std::size_t i = 0; i < count; ++i) {
    at::autocast::set_autocast_enabled(devices[i].type, devices[i].enabled);
    at::autocast::set_autocast_dtype(devices[i].type, devices[i].dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache);
}

}  // namespace snug::record
