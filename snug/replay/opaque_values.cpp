#include "snug/replay/opaque_values.h"

#include <fmt/format.h>

namespace snug::replay {

std::vector<std::string> opaque_lines(const record::Tape& tape) {
  std::vector<std::string> lines;
  for (const record::Opaque& opaque : tape.opaque()) {
    lines.push_back(
        fmt::format("{} of {} is kept: what filled it is no operator of LibTorch's dispatcher. Register that kernel "
                    "(TORCH_LIBRARY) to have it replayed, or call it in a snug::checkpoint with snug::Rerun that no "
                    "region is around",
                    format_bytes(opaque.bytes), opaque.operation));
  }
  return lines;
}

}  // namespace snug::replay
