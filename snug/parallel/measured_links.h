#pragma once

#include "snug/parallel/links.h"
#include "snug/parallel/world.h"

namespace snug::parallel {

/// What the links of these processes do, as all use them at once: the same in all. Between machines it is as within
/// where there is one. Ranks of a machine must follow each other, as launchers number them, as many on each. All call
/// it at once, and nothing else should run. Throws GroupFailed, and UsageError where they lie in another way, or one is
/// alone.
Links measured_links(World& world);

}  // namespace snug::parallel
