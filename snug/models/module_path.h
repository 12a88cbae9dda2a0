#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string_view>

namespace snug::models {

/// Registers a module under a path of names from `root` on, "attn.c_proj", with plain modules in between where there
/// are none yet.
void register_at(torch::nn::Module& root, std::string_view path, std::shared_ptr<torch::nn::Module> module);

}  // namespace snug::models
