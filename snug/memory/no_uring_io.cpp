#include "snug/memory/piece_io.h"

namespace snug::memory {

std::unique_ptr<PieceIo> uring_io() { return nullptr; }

}  // namespace snug::memory
