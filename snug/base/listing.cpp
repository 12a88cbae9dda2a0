#include "snug/base/listing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

namespace snug {

std::string listed(const std::vector<std::string>& items, std::string_view separator) {
  constexpr std::size_t kShown = 8;
  const std::span shown = std::span(items).first(std::min(items.size(), kShown));
  const std::size_t more = items.size() - shown.size();
  return fmt::format("{}{}", fmt::join(shown, separator), more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace snug
