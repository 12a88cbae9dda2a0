#include "snug/base/module_scope.h"

namespace snug {
namespace {

thread_local std::string t_path;  // NOLINT: destroyed with its thread, before which no scope is left

}  // namespace

ModuleScope::ModuleScope(std::string_view name) : length_before_(t_path.size()) {
  if (!t_path.empty()) t_path += '.';
  t_path += name;
}

ModuleScope::~ModuleScope() { t_path.resize(length_before_); }

const std::string& current_module() { return t_path; }

bool is_in_module(std::string_view path, std::string_view name) {
  if (name.empty()) return true;
  for (std::size_t at = path.find(name); at != std::string_view::npos; at = path.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    const bool begins = at == 0 || path[at - 1] == '.', ends = end == path.size() || path[end] == '.';
    if (begins && ends) return true;
  }
  return false;
}

bool is_of_module(std::string_view parameter, std::string_view name) {
  const std::size_t dot = parameter.rfind('.');
  return dot != std::string_view::npos && !name.empty() && is_in_module(parameter.substr(0, dot), name);
}

}  // namespace snug
