#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace snug {

/// Reads a TOML file into JSON: tables become objects with their keys in the file's order, dates and times become
/// strings, nan and inf stay numbers. Throws UsageError when the file is missing, a folder, unreadable, larger than
/// 1 MiB or malformed; a malformed one is named as file:line:column with what the parser expected.
nlohmann::ordered_json read_toml(const std::filesystem::path& path);

/// The same for a text in memory; `name` stands for the file in messages.
nlohmann::ordered_json parse_toml(std::string_view text, std::string_view name);

/// Reads the right side of an assignment given on the command line, as in --set train.steps=100: any one TOML value.
/// What is no TOML value becomes a string (400MiB, 60%, data/tiny.txt, nothing at all), except what opens a quote,
/// bracket or brace and does not close it properly: that is a UsageError.
nlohmann::ordered_json parse_toml_value(std::string_view text);

}  // namespace snug
