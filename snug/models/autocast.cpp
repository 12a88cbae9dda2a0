#include "snug/models/autocast.h"

#include <ATen/autocast_mode.h>

namespace snug::models {

AutocastScope::AutocastScope(std::optional<c10::ScalarType> dtype, c10::DeviceType device, WeightCasts casts)
    : active_(dtype.has_value()), device_(device) {
  if (!active_) return;
  enabled_before_ = at::autocast::is_autocast_enabled(device_);
  dtype_before_ = at::autocast::get_autocast_dtype(device_);
  caching_before_ = at::autocast::is_autocast_cache_enabled();
  if (casts == WeightCasts::Dropped) at::autocast::set_autocast_cache_enabled(false);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, *dtype);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(caching_before_);
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace snug::models
