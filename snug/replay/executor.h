#pragma once

#include "snug/plan/step/ids.h"

namespace snug::record {
class Tape;
}

namespace snug::replay {

/// Makes an absent value resident by running the recorded operators that it depends on, with the random states, the
/// gradient mode and the default type that they had, and nothing else of the present thread's state. Values that are
/// still waited for and depend on the same operators are made along the way; the rest is freed as soon as it has no
/// further use. The caller holds the tape's mutex. Throws Error when an input was changed since the recording, when
/// another thread draws from a generator while an operator does, and when an operator makes something of another size
/// or type; OutOfBudget when evictions that make room for an operand take another, over and over.
void materialize(record::Tape& tape, plan::ValueId value);

/// What the plan fetches before backward asks for it, as backward unpacks another tensor: copies that begin now. Where
/// there is no memory for that, it is fetched when it is asked for. The caller holds the tape's mutex. Throws Error
/// when contents cannot be read.
void fetch_ahead(record::Tape& tape);

}  // namespace snug::replay
