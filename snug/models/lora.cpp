#include "snug/models/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "snug/base/errors.h"
#include "snug/models/linear.h"

namespace snug::models {
namespace {

constexpr std::string_view kAllLinear = "all-linear";
constexpr std::string_view kHead = "lm_head";

/// Whether text is the pattern, whose stars stand for any characters.
bool glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_adapter(std::string_view name) { return name.ends_with(".lora_A") || name.ends_with(".lora_B"); }

/// The last parts of the names there are, each once.
std::vector<std::string> kinds_of(const torch::nn::Module& model) {
  std::set<std::string> kinds;
  for (const auto& [name, linear] : linear_modules(model)) kinds.insert(name.substr(name.rfind('.') + 1));
  return {kinds.begin(), kinds.end()};
}

void check(const LoraOptions& o) {
  if (o.rank < 1 || o.rank > 65536) throw UsageError(fmt::format("lora: rank {} must be from 1 to 65536", o.rank));
  if (!(o.dropout >= 0 && o.dropout < 1)) {
    throw UsageError(fmt::format("lora: dropout {} must be at least 0 and less than 1", o.dropout));
  }
  if (!(o.alpha > 0) || !std::isfinite(o.alpha))
    throw UsageError(fmt::format("lora: alpha {} must be positive", o.alpha));
  if (o.targets.empty()) throw UsageError("lora: no targets; name linear modules, or all-linear");
}

}  // namespace

LinearModules linear_modules(const torch::nn::Module& model) {
  LinearModules found;
  for (const auto& module : model.named_modules("", /*include_self=*/false)) {
    auto linear = std::dynamic_pointer_cast<LinearImpl>(module.value());
    if (linear != nullptr && !is_adapter(module.key())) found.emplace_back(module.key(), std::move(linear));
  }
  return found;
}

double LoraOptions::factor() const {
  const auto r = static_cast<double>(rank);
  return alpha / (scale == LoraScale::AlphaOverRank ? r : std::sqrt(r));
}

bool target_names(std::string_view target, std::string_view module_name) {
  if (target == kAllLinear) return !module_name.ends_with(kHead);
  for (std::size_t begin = 0; begin != std::string_view::npos;) {
    if (glob(target, module_name.substr(begin))) return true;
    const std::size_t dot = module_name.find('.', begin);
    begin = dot == std::string_view::npos ? dot : dot + 1;
  }
  return false;
}

std::vector<std::string> add_lora(torch::nn::Module& model, const LoraOptions& options) {
  check(options);
  const auto all = linear_modules(model);
  if (const auto with = std::ranges::find_if(all, [](const auto& l) { return l.second->adapted(); });
      with != all.end()) {
    throw UsageError(fmt::format("lora: {} has an adapter already; merge it first", with->first));
  }
  std::vector<std::string> names;
  for (const std::string& target : options.targets) {
    if (std::ranges::none_of(all, [&](const auto& l) { return target_names(target, l.first); })) {
      throw UsageError(fmt::format("lora: the target \"{}\" names no linear module; there are {}", target,
                                   fmt::join(kinds_of(model), ", ")));
    }
  }
  for (at::Tensor& p : model.parameters()) p.requires_grad_(false);
  for (const auto& [name, linear] : all) {
    const bool meant =
        std::ranges::any_of(options.targets, [&, &n = name](const std::string& t) { return target_names(t, n); });
    if (!meant) continue;
    linear->adapt(options);
    names.push_back(name);
  }
  return names;
}

std::vector<std::pair<std::string, at::Tensor>> lora_parameters(const torch::nn::Module& model) {
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (const auto& p : model.named_parameters()) {
    if (p.key().ends_with(".lora_A.weight") || p.key().ends_with(".lora_B.weight"))
      found.emplace_back(p.key(), p.value());
  }
  return found;
}

void merge_lora(torch::nn::Module& model) {
  const auto all = linear_modules(model);
  for (const auto& [name, linear] : all) {
    if (linear->adapted() && linear->packed()) linear->merge();  // throws, before anything is merged
  }
  for (const auto& [name, linear] : all) linear->merge();
}

}  // namespace snug::models
