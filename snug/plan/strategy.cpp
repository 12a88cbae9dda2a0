#include "snug/plan/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "snug/base/comma_list.h"
#include "snug/base/errors.h"
#include "snug/base/nearest.h"

namespace snug::plan {
namespace {

using namespace strategies;

/// "name(a, b)"
struct Written {
  std::string name;
  bool has_arguments = false;
  std::vector<std::string> arguments;
};

Written parse(std::string_view text) {
  text = trimmed(text);
  Written written;
  const auto open = text.find('(');
  written.name = trimmed(text.substr(0, open));
  if (open == std::string_view::npos) return written;
  if (text.back() != ')') throw UsageError(fmt::format("strategy: \"{}\" has no closing parenthesis", text));
  written.has_arguments = true;
  const std::string_view arguments = trimmed(text.substr(open + 1, text.size() - open - 2));
  if (!arguments.empty()) written.arguments = split_at_commas(arguments);
  return written;
}

int count_of(const Written& written, int least = 1) {
  int count = 0;
  if (written.arguments.size() == 1) {
    const std::string& text = written.arguments.front();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error == std::errc() && end == text.data() + text.size() && count >= least) return count;
  }
  throw UsageError(fmt::format("strategy: {} takes one whole number from {} on, as in {}({})", written.name, least,
                               written.name, least == 0 ? 1 : 4));
}

Bytes bytes_of(const Written& written) {
  try {
    if (written.arguments.size() == 1) return parse_bytes(written.arguments.front());
  } catch (const UsageError&) {  // NOLINT(bugprone-empty-catch): as with too many of them
  }
  throw UsageError(fmt::format("strategy: {} takes a number of bytes, as in {}(1KiB)", written.name, written.name));
}

struct Form {
  std::string name, arguments;
  Strategy (*read)(const Written&);
};

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"optimal", "", [](const Written&) -> Strategy { return Optimal{}; }},
      {"none", "", [](const Written&) -> Strategy { return None{}; }},
      {"every_block", "", [](const Written&) -> Strategy { return EveryBlock{}; }},
      {"chen_sqrt", "", [](const Written&) -> Strategy { return ChenSqrt{}; }},
      {"revolve", "(N)", [](const Written& w) -> Strategy { return Revolve{count_of(w)}; }},
      {"sequential", "(N)", [](const Written& w) -> Strategy { return Sequential{count_of(w)}; }},
      {"selective", "(OPERATOR,...)", [](const Written& w) -> Strategy { return SelectiveBlocks{w.arguments}; }},
      {"full_uniform", "(N)", [](const Written& w) -> Strategy { return FullUniform{count_of(w)}; }},
      {"full_block", "(N)", [](const Written& w) -> Strategy { return FullBlock{count_of(w)}; }},
      {"core_attention", "", [](const Written&) -> Strategy { return CoreAttention{}; }},
      {"recompute_modules", "(NAME,...)", [](const Written& w) -> Strategy { return RecomputeModules{w.arguments}; }},
      {"recompute_outputs", "(NAME,...)", [](const Written& w) -> Strategy { return RecomputeOutputs{w.arguments}; }},
      {"offload_modules", "(NAME,...)", [](const Written& w) -> Strategy { return OffloadModules{w.arguments}; }},
      {"offload", "(BYTES)", [](const Written& w) -> Strategy { return Offload{bytes_of(w)}; }},
      {"offloaded_blocks", "(N)", [](const Written& w) -> Strategy { return OffloadedBlocks{count_of(w, 0)}; }},
      {"eviction", "", [](const Written&) -> Strategy { return Eviction{}; }},
  };
  return all;
}

}  // namespace

std::vector<std::string> strategy_forms() {
  std::vector<std::string> result;
  for (const Form& form : forms()) result.push_back(form.name + form.arguments);
  return result;
}

Strategy strategy_from(std::string_view text) {
  const Written written = parse(text);
  std::vector<std::string> names;
  for (const Form& form : forms()) {
    names.push_back(form.name);
    if (form.name != written.name) continue;
    if (form.arguments.empty() && written.has_arguments) {
      throw UsageError(fmt::format("strategy: {} takes no arguments", form.name));
    }
    if (!form.arguments.empty() && written.arguments.empty()) {
      throw UsageError(fmt::format("strategy: {} needs its arguments: {}{}", form.name, form.name, form.arguments));
    }
    return form.read(written);
  }
  throw UsageError(fmt::format("strategy: unknown strategy \"{}\"; {}it must be one of {}", text,
                               did_you_mean(written.name, names), fmt::join(strategy_forms(), ", ")));
}

bool may_compress(std::string_view text) { return std::holds_alternative<Optimal>(strategy_from(text)); }

bool may_move(std::string_view text) {
  const Strategy strategy = strategy_from(text);
  return std::holds_alternative<Optimal>(strategy) || std::holds_alternative<OffloadModules>(strategy) ||
         std::holds_alternative<Offload>(strategy) || std::holds_alternative<OffloadedBlocks>(strategy);
}

bool drops_without_budget(std::string_view text) {
  const Strategy strategy = strategy_from(text);
  return !std::holds_alternative<Optimal>(strategy) && !std::holds_alternative<None>(strategy) &&
         !std::holds_alternative<Eviction>(strategy) && !std::holds_alternative<Offload>(strategy) &&
         !std::holds_alternative<OffloadModules>(strategy);
}

}  // namespace snug::plan
