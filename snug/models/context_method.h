#pragma once

namespace snug::models {

/// How processes that have a part of every sequence each attend to all of it.
enum class ContextMethod : unsigned char {
  Heads,  ///< each by some of the heads over all positions (Jacobs et al. 2023, arXiv:2309.14509)
  Ring,   ///< by all heads, to what one process after the other has (see ops::ring_attention)
};

}  // namespace snug::models
