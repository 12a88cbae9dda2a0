#pragma once

#include <exception>
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

/// A front end whose language has exceptions of its own sets this, once, when it is loaded. The function is called with
/// what snug is about to throw into LibTorch, and throws what LibTorch hands through to that language.
using ErrorTranslator = void (*)(const std::exception_ptr& error);
void set_error_translator(ErrorTranslator translator) noexcept;

/// In a catch block, where snug was called by LibTorch: throws the error on, translated if there is a translator.
[[noreturn]] void throw_into_libtorch();

}  // namespace snug
