#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "snug/train/config_keys.h"

namespace snug::train {

/// Reads {"section": {"key": value}}; what is not mentioned keeps its default. `source` names the file in messages.
/// Throws UsageError for an unknown section or key (naming the nearest known one), a value of the wrong type, and a
/// value outside its own rule. Keys are not compared with each other here: see validate().
Config config_from_json(const nlohmann::ordered_json& json, std::string_view source);

/// Reads a configuration that another version of snug may have written: sections, keys and values that this version
/// does not know keep their defaults. `left_out` is called with an error message for each.
Config known_part(const nlohmann::ordered_json& json, std::string_view source,
                  const std::function<void(const std::string&)>& left_out);

/// Reads a TOML file the same way. Call validate() once the last set_key() is done.
Config load_config(const std::filesystem::path& path);

/// Every section and key, in the order of the structs; config_from_json reads it back to an equal Config.
nlohmann::ordered_json to_json(const Config& config);

/// Applies one "section.key=value" from the command line. Text needs no quotes. Throws UsageError as config_from_json
/// does, and leaves `config` unchanged then.
void set_key(Config& config, std::string_view assignment);

/// Checks every key's own rule and the rules between keys (width divisible by heads, ...), and that no key was set, by
/// name or to another value than its default, that does nothing beside the others; throws UsageError.
void validate(const Config& config);

struct KeyHelp {
  std::string key;           ///< "train.steps"
  std::string type;          ///< "integer", "number", "string" or "boolean"
  std::string default_text;  ///< As it would stand in a TOML file: 100, "optimal".
  std::string help;          ///< One line, with the key's rule at the end.
  Resumed resumed;
  Commands commands;
};

/// All keys in the order of the structs, for --help and the documentation.
std::vector<KeyHelp> config_keys();

/// Of the keys that a resumed run may not change, those that differ, each as "train.batch was 2 and is 4". `before`:
/// what to_json() gave for the run before; a key that it does not have had its default.
std::vector<std::string> changed_when_resumed(const nlohmann::json& before, const Config& now);

/// The words of a list with commas between them, without the blanks around.
std::vector<std::string> split_list(std::string_view text);

}  // namespace snug::train
