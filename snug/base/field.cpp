#include "snug/base/field.h"

#include <cstddef>
#include <exception>
#include <nlohmann/json.hpp>

#include "snug/base/errors.h"
#include "snug/base/shortened.h"

namespace snug {

void FieldSource::fail(std::string_view what) const {
  if (raise != nullptr) raise(name, what);
  throw UsageError(fmt::format("{}: {}", name, what));
}

void FieldSource::refuse(std::string_view path, std::string_view shown, std::string_view expected) const {
  const std::string place = path.empty() ? "it" : fmt::format("its {}", path);
  fail(fmt::format("{} is {}; it must be {}{}{}", place, shown, expected, cure.empty() ? "" : "; ", cure));
}

void FieldSource::miss(std::string_view path, std::string_view expected) const {
  fail(fmt::format("it has no {}, which must be {}{}{}", path, expected, cure.empty() ? "" : "; ", cure));
}

std::string quoted_text(std::string_view text) {
  constexpr std::size_t kShown = 60;
  return nlohmann::json(shortened(text, kShown)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace snug
