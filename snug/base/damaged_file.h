#pragma once

#include <fmt/format.h>

#include <string_view>

#include "snug/base/errors.h"

namespace snug {

/// A file is not what its format says. what() names the file, the place in it and the rule.
class DamagedFile : public Error {
 public:
  DamagedFile(std::string_view file, std::string_view what_is_wrong)
      : Error(fmt::format("{}: {}", file, what_is_wrong)) {}

  [[noreturn]] static void raise(std::string_view file, std::string_view what_is_wrong) {
    throw DamagedFile(file, what_is_wrong);
  }
};

}  // namespace snug
