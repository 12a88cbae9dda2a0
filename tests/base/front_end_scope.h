#pragma once

#include "snug/base/front_end.h"

namespace snug::testing {

/// Another front end for as long as it lives, which must outlive the threads that ask it.
class FrontEndScope {
 public:
  explicit FrontEndScope(const FrontEnd& front) : before_(front_end()) { set_front_end(front); }
  ~FrontEndScope() { set_front_end(before_); }
  FrontEndScope(const FrontEndScope&) = delete;
  FrontEndScope& operator=(const FrontEndScope&) = delete;

 private:
  const FrontEnd& before_;
};

}  // namespace snug::testing
