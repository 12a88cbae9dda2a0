#include "snug/replay/opaque_values.h"

#include <fmt/format.h>

namespace snug::replay {

std::vector<std::string> opaque_lines(const record::Tape& tape) {
  std::vector<std::string> lines;
  for (const record::Opaque& opaque : tape.opaque()) {
    const char* what = opaque.what == record::Opaque::Case::Filled
                           ? "what filled it is no operator of LibTorch's dispatcher"
                           : "its version rose by more than the dispatcher's operators wrote it, as a kernel of one's "
                             "own that writes over it has it rise (mark_dirty does after any)";
    lines.push_back(
        fmt::format("{} of {} is kept: {}. Register that kernel (TORCH_LIBRARY) to have it replayed, or call it in a "
                    "snug::checkpoint with snug::Rerun that no region is around",
                    format_bytes(opaque.bytes), opaque.operation, what));
  }
  return lines;
}

}  // namespace snug::replay
