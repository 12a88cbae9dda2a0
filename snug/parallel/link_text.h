#pragma once

#include <string>
#include <string_view>

#include "snug/parallel/links.h"

namespace snug::parallel {

/// Reads "400Gbps", "50GBps/3us": what is sent in a second, in bits (bps) or bytes (Bps), and how long a message is
/// under way besides, in s, ms or us; where that is left out it is `otherwise`. k, M, G and T are powers of 1000, Ki,
/// Mi, Gi and Ti of 1024. From 100 kB a second on, and up to 0.1 s. Throws UsageError naming the text.
Link parse_link(std::string_view text, double otherwise);

/// "50 GB/s, 3 us a message".
std::string in_words(const Link& link);
/// As parse_link() reads it, but for digits behind the third or fourth: "50GBps/3us".
std::string to_text(const Link& link);

}  // namespace snug::parallel
