#pragma once

#include <sys/resource.h>

#include <fstream>

#include "snug/memory/address_range.h"

namespace snug::memory::testing_support {

/// While it lives this process gets so many bytes of addresses more, as under ulimit -v.
class AddressLimit {
 public:
  explicit AddressLimit(Bytes more) {
    Bytes pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(pages * AddressRange::kPage + more);
    setrlimit(RLIMIT_AS, &limit);
  }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;
  ~AddressLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

}  // namespace snug::memory::testing_support
