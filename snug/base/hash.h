#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace snug {

/// XXH3 of 64 bits, the same on every machine of one byte order: for what files and other processes compare.
std::uint64_t hash_64(std::span<const std::byte> bytes);

/// XXH3 of 128 bits, as 32 hexadecimal digits: for contents of files. Of bytes that come in pieces.
class Hash128 {
 public:
  Hash128();
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::string digits() const;

 private:
  struct State;
  struct Free {
    void operator()(State* state) const noexcept;
  };
  std::unique_ptr<State, Free> state_;
};

/// The same of bytes that are all there.
std::string hash_128(std::span<const std::byte> bytes);

}  // namespace snug
