#pragma once

#include "snug/memory/codec.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/step/step_graph.h"

namespace snug::record {
class Tape;

/// What a plan calls so; there must be one.
memory::Codec codec_of(plan::Codec codec);

/// Notes codecs that suit what saved results of the CPU's memory hold now, of those that the tape holds: how many bytes
/// are left, and how long it takes to encode and decode them. Of each the best that gives back the same bits, and
/// the lossy one that the graph names. Takes a MiB or two that nobody counts. The tape's mutex is held.
void measure_encodings(const Tape& tape, const memory::DeviceMemory& memory, plan::StepGraph& graph);

}  // namespace snug::record
