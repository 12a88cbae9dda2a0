#include "snug/replay/starved.h"

#include "snug/memory/device_memory.h"
#include "snug/memory/out_of_budget.h"

namespace snug::replay {

Starved Starved::at(const record::Tape& tape, plan::OpId op) {
  Starved starved{op};
  Bytes most = 0;
  for (const plan::ValueId input : tape.flow().inputs(op)) {
    if (tape.ledger().resident(input)) continue;
    const Bytes bytes = tape.values().nbytes(input);
    starved.missing += bytes;
    if (bytes < most) continue;
    most = bytes;
    starved.device = tape.values().device(input);
  }
  return starved;
}

void Starved::refuse(const record::Tape& tape) const {
  throw OutOfBudget({.requested = missing,
                     .device = device,
                     .operation = tape.calls().call(op).traits->name,
                     .stats = memory::device_memory(device).stats(),
                     .largest = {},
                     .in_step = true});
}

}  // namespace snug::replay
