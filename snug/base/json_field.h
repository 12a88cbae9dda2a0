#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/field.h"

namespace snug {

class JsonField;

/// A JSON file that is read field by field; its source says what is thrown and said of it. No message has words of the
/// JSON library's.
class JsonFile {
 public:
  /// Parses; throws where the text is no JSON.
  JsonFile(std::string_view text, FieldSource source);
  /// Of JSON that was parsed elsewhere, which must outlive it; throws where that failed.
  static JsonFile parsed(const nlohmann::json& json, FieldSource source);
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;
  ~JsonFile() = default;

  /// All that it holds.
  [[nodiscard]] JsonField root() const;
  [[nodiscard]] const FieldSource& source() const { return source_; }

 private:
  friend class JsonField;
  JsonFile(std::shared_ptr<const nlohmann::json> json, FieldSource source);

  FieldSource source_;
  std::shared_ptr<const nlohmann::json> json_;
};

/// A value in a JSON file, and where it stands. What is not as it is asked for is refused as FieldSource says. Two
/// pointers: cheap to copy; the file must outlive it.
class JsonField {
 public:
  /// Of an object: what a key has, nullopt where it is missing or null. Refused for what is no object.
  [[nodiscard]] std::optional<JsonField> find(std::string_view key) const;
  /// What is missing or null is refused.
  [[nodiscard]] JsonField at(std::string_view key) const { return member(key, "there"); }
  template <class T>
  [[nodiscard]] T required(std::string_view key, const Range& range = kAnyNumber) const {
    return member(key, expectation<T>(range)).template as<T>(range);
  }
  template <class T>
  [[nodiscard]] T optional(std::string_view key, T otherwise, const Range& range = kAnyNumber) const {
    const std::optional<JsonField> field = find(key);
    return field ? field->as<T>(range) : otherwise;
  }
  [[nodiscard]] std::vector<std::pair<std::string_view, JsonField>> members() const;

  /// Of an array: one of its values; a shorter one is refused.
  [[nodiscard]] JsonField at(std::size_t index) const;
  [[nodiscard]] std::vector<JsonField> items() const;
  /// Of an array or object; 0 for what is neither.
  [[nodiscard]] std::size_t size() const;

  /// As value_as has it, or a std::vector of such.
  template <class T>
  [[nodiscard]] T as(const Range& range = kAnyNumber) const {
    if constexpr (kIsList<T>) {
      T all;
      for (const JsonField& item : items()) all.push_back(item.template as<typename T::value_type>(range));
      return all;
    } else {
      std::optional<T> value = value_as<T>(this->value(), range);
      if (!value) refuse(expectation<T>(range));
      return std::move(*value);
    }
  }
  /// What stands beside the word that it is.
  template <class Choice, std::size_t N>
  [[nodiscard]] Choice one_of(const std::array<std::pair<std::string_view, Choice>, N>& choices) const {
    std::vector<std::string_view> words;
    for (const auto& [word, choice] : choices) {
      if (is(word)) return choice;
      words.push_back(word);
    }
    refuse_word(words);
  }

  /// Whether it is that text.
  [[nodiscard]] bool is(std::string_view text) const { return value() == FieldValue(text); }
  [[nodiscard]] bool is_null() const;
  [[nodiscard]] bool is_array() const;
  [[nodiscard]] bool is_object() const;
  [[nodiscard]] FieldValue value() const;

  /// As messages have it: on one line, shortened, valid UTF-8.
  [[nodiscard]] std::string shown() const;
  [[noreturn]] void refuse(std::string_view expected) const;
  [[noreturn]] void fail(std::string_view what) const { file_->source().fail(what); }

 private:
  friend class JsonFile;
  JsonField(const nlohmann::json* json, const JsonFile* file) : json_(json), file_(file) {}
  [[nodiscard]] JsonField member(std::string_view key, std::string_view expected) const;
  [[nodiscard]] std::string path() const;
  [[noreturn]] void refuse_word(const std::vector<std::string_view>& words) const;

  const nlohmann::json* json_;
  const JsonFile* file_;
};

}  // namespace snug
