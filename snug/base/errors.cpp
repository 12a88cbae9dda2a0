#include "snug/base/errors.h"

namespace snug {
namespace {
ErrorTranslator g_translator = nullptr;
}

void set_error_translator(ErrorTranslator translator) noexcept { g_translator = translator; }

void throw_into_libtorch() {
  if (g_translator != nullptr) g_translator(std::current_exception());
  throw;
}

}  // namespace snug
