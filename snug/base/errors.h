#pragma once

#include <stdexcept>
#include <string>

namespace snug {

/// Base of every error that snug reports. what() is one line: the operation, the actual values, the rule that was
/// broken and what to do. The command exits with exit_code() and prints no stack trace.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  [[nodiscard]] virtual int exit_code() const noexcept { return 1; }
};

/// The caller asked for something that cannot be: an unknown key, a size that does not parse, an empty data folder.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(message) {}
  [[nodiscard]] int exit_code() const noexcept override { return 2; }
};

/// Somebody asked for an end before there was a result.
class Stopped : public Error {
 public:
  explicit Stopped(const std::string& message) : Error(message) {}
  static constexpr int kExitCode = 130;  ///< 128 + SIGINT, as shells have it
  [[nodiscard]] int exit_code() const noexcept override { return kExitCode; }
};

/// In a catch block, where snug was called by LibTorch: throws the error on, as the front end translates it.
[[noreturn]] void throw_into_libtorch();
/// The same of a new error.
template <class E>
[[noreturn]] void throw_into_libtorch(E error) {
  try {
    throw error;
  } catch (...) {
    throw_into_libtorch();
  }
}

}  // namespace snug
