#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "snug/base/errors.h"
#include "snug/base/field.h"
#include "snug/base/text_file.h"

namespace snug::train {

/// Throws the UsageError of a file or folder that no model can be taken from.
[[noreturn]] inline void refuse_model(const std::filesystem::path& path, std::string_view what) {
  throw UsageError(fmt::format("model: {}: {}", path.string(), what));
}

/// How messages name a file that says what a model is like.
inline FieldSource model_source(const std::filesystem::path& path) {
  return {.name = fmt::format("model: {}", path.string()),
          .cure = "use a model of a kind that is known, with its files as they were written"};
}

/// The contents of a file of a model. Throws UsageError when it cannot be read.
inline std::string model_text(const std::filesystem::path& path) {
  try {
    return read_text(path);
  } catch (const std::system_error& error) {
    refuse_model(path, fmt::format("it cannot be read: {}; name a GGUF file, or a folder as transformers saves it",
                                   error.code().message()));
  }
}

}  // namespace snug::train
