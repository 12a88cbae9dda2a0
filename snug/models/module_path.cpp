#include "snug/models/module_path.h"

#include <string>
#include <utility>

namespace snug::models {

void register_at(torch::nn::Module& root, std::string_view path, std::shared_ptr<torch::nn::Module> module) {
  torch::nn::Module* at = &root;
  for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    const std::string name(path.substr(0, dot));
    const auto children = at->named_children();
    const std::shared_ptr<torch::nn::Module>* const child = children.find(name);
    at = child != nullptr ? child->get() : at->register_module(name, std::make_shared<torch::nn::Module>()).get();
    path.remove_prefix(dot + 1);
  }
  at->register_module(std::string(path), std::move(module));
}

}  // namespace snug::models
