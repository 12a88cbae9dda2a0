#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/state/gguf.h"
#include "snug/train/refuse_model.h"

namespace snug::train {

/// What a GGUF file says of its model, by the keys that llama.cpp writes. A default is for a key that is not there, and
/// not for one that says something else: a value of another type or out of range is a UsageError. Both arguments must
/// outlive it.
class GgufMetadata {
 public:
  GgufMetadata(const state::GgufHeader& header, const std::filesystem::path& path) : header_(header), path_(path) {}

  [[nodiscard]] bool has(std::string_view key) const { return header_.metadata.contains(key); }

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const {
    if (const auto* const u = header_.find<std::uint64_t>(key)) {
      if (*u > std::uint64_t{1} << 40) refuse_model(path_, fmt::format("its {} is {}", key, *u));
      return static_cast<std::int64_t>(*u);
    }
    const auto* const i = get<std::int64_t>(key, "one integer");
    return i != nullptr ? std::optional(*i) : std::nullopt;
  }
  [[nodiscard]] std::int64_t needed(std::string_view key) const {
    const auto value = integer(key);
    if (!value || *value < 1) refuse_model(path_, fmt::format("it has no {}, or none above zero", key));
    return *value;
  }
  [[nodiscard]] std::optional<double> number(std::string_view key) const {
    if (header_.find<std::uint64_t>(key) != nullptr || header_.find<std::int64_t>(key) != nullptr) {
      return static_cast<double>(*integer(key));
    }
    const auto* const value = get<double>(key, "one number");
    return value != nullptr ? std::optional(*value) : std::nullopt;
  }
  [[nodiscard]] std::string text(std::string_view key, std::string_view otherwise) const {
    const auto* const value = get<std::string>(key, "text");
    return value != nullptr ? *value : std::string(otherwise);
  }
  [[nodiscard]] std::optional<bool> flag(std::string_view key) const {
    const auto* const value = get<bool>(key, "true or false");
    return value != nullptr ? std::optional(*value) : std::nullopt;
  }
  template <class T>
  [[nodiscard]] std::vector<T> list(std::string_view key) const {
    const auto* const found = header_.find<std::vector<T>>(key);
    return found != nullptr ? *found : std::vector<T>();
  }

 private:
  template <class T>
  const T* get(std::string_view key, std::string_view what) const {
    const T* const value = header_.find<T>(key);
    if (value == nullptr && has(key)) refuse_model(path_, fmt::format("its {} is not {}", key, what));
    return value;
  }

  const state::GgufHeader& header_;
  const std::filesystem::path& path_;
};

}  // namespace snug::train
