#include "snug/models/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/base/name_pattern.h"
#include "snug/models/linear.h"
#include "snug/models/task.h"

namespace snug::models {
namespace {

constexpr std::string_view kAllLinear = "all-linear";
constexpr std::string_view kHead = "lm_head";

/// With the heads of the model's task.
std::vector<std::string> modules_to_save(const torch::nn::Module& model, const LoraOptions& options) {
  std::vector<std::string> names = options.modules_to_save;
  if (const auto* const has = dynamic_cast<const HasTask*>(&model)) {
    const Task task = has->task();
    for (const std::string& head : task.heads) {
      if (std::ranges::find(names, head) == names.end()) names.push_back(head);
    }
  }
  const auto all = model.named_parameters();
  for (const std::string& name : names) {
    if (std::ranges::none_of(all, [&](const auto& p) { return is_inside(p.key(), {name}); })) {
      throw UsageError(
          fmt::format("lora: modules_to_save has \"{}\", which names no module with parameters; write a "
                      "module's name, or the end of it at a dot",
                      name));
    }
  }
  return names;
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

bool target_names(const std::string& target, const std::string& module_name) {
  return target == kAllLinear ? !module_name.ends_with(kHead) : name_matches(target, module_name);
}

std::vector<std::string> add_lora(torch::nn::Module& model, const LoraOptions& options) {
  check(options);
  const auto all = linear_modules(model);
  if (const auto with = std::ranges::find_if(all, [](const auto& l) { return l.second->adapted(); });
      with != all.end()) {
    throw UsageError(fmt::format("lora: {} has an adapter already; merge it first", with->first));
  }
  LoraOptions resolved = options;
  resolved.modules_to_save = modules_to_save(model, options);
  const auto meant_by = [&](const std::string& target, const std::string& name) {
    return target_names(target, name) && !is_inside(name + ".weight", resolved.modules_to_save);
  };
  std::vector<std::string> names;
  for (const std::string& target : options.targets) {
    if (std::ranges::none_of(all, [&](const auto& l) { return meant_by(target, l.first); })) {
      throw UsageError(fmt::format("lora: the target \"{}\" names no linear module; there are {}", target,
                                   fmt::join(kinds_of(model), ", ")));
    }
  }
  for (const auto& p : model.named_parameters()) {
    at::Tensor(p.value()).requires_grad_(is_inside(p.key(), resolved.modules_to_save));
  }
  for (const auto& [name, linear] : all) {
    const bool meant =
        std::ranges::any_of(options.targets, [&, &n = name](const std::string& t) { return meant_by(t, n); });
    if (!meant) continue;
    linear->adapt(resolved);
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

const LoraOptions* lora_options(const torch::nn::Module& model) {
  for (const auto& [name, linear] : linear_modules(model)) {
    if (linear->adapted()) return linear->adapter_options();
  }
  return nullptr;
}

std::vector<std::pair<std::string, at::Tensor>> whole_modules(const torch::nn::Module& model) {
  const LoraOptions* const options = lora_options(model);
  std::vector<std::pair<std::string, at::Tensor>> found;
  if (options == nullptr) return found;
  const auto take = [&](const auto& tensors) {
    for (const auto& t : tensors) {
      if (is_inside(t.key(), options->modules_to_save)) found.emplace_back(t.key(), t.value());
    }
  };
  take(model.named_parameters());
  take(model.named_buffers());
  return found;
}

bool is_inside(std::string_view parameter, const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const std::string& name) { return is_of_module(parameter, name); });
}

void merge_lora(torch::nn::Module& model) {
  const auto all = linear_modules(model);
  for (const auto& [name, linear] : all) {
    if (linear->adapted() && linear->packed()) linear->merge();  // throws, before anything is merged
  }
  for (const auto& [name, linear] : all) linear->merge();
}

}  // namespace snug::models
