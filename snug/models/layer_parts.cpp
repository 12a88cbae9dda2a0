#include "snug/models/layer_parts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "snug/base/errors.h"
#include "snug/models/linear.h"
#include "snug/models/lora.h"

namespace snug::models {
namespace {

constexpr std::uint64_t kAway = 2718;

bool ends_with_name(const std::string& path, std::string_view name) {
  return path.ends_with(name) && (path.size() == name.size() || path[path.size() - name.size() - 1] == '.');
}

/// A graph of before, which may be there still, accumulates gradients of the size that it had.
void become(const at::Tensor& parameter, const at::Tensor& part) {
  parameter.mutable_grad() = at::Tensor();
  if (auto* const autograd = torch::autograd::impl::get_autograd_meta(parameter)) autograd->grad_accumulator_.reset();
  parameter.set_data(part);
}

}  // namespace

RandomOfParts::RandomOfParts(int rank, c10::Device device) : generator_(at::globalContext().defaultGenerator(device)) {
  const std::scoped_lock lock(generator_.mutex());
  std::uint64_t drawn = 0;
  if (device.is_cpu()) {
    drawn = generator_.get<at::CPUGeneratorImpl>()->random64();
  } else {  // counters: seeds far apart for each state
    constexpr std::uint64_t kStep = 4, kFar = 0x9e3779b97f4a7c15;
    const std::uint64_t offset = generator_.get_offset();
    generator_.set_offset(offset + kStep);
    drawn = generator_.current_seed() + kFar * (offset + 1);
  }
  outside_ = generator_.get_state();
  generator_.set_current_seed(drawn + kAway + static_cast<std::uint64_t>(rank));
}

RandomOfParts::~RandomOfParts() {
  const std::scoped_lock lock(generator_.mutex());
  generator_.set_state(outside_);
}

void keep_part(const at::Tensor& parameter, std::int64_t dimension, std::int64_t first, std::int64_t count) {
  const at::NoGradGuard no_grad;
  become(parameter, parameter.detach().narrow(dimension, first, count).clone(at::MemoryFormat::Contiguous));
}

void keep_piecewise_part(const at::Tensor& parameter, std::int64_t dimension, std::int64_t pieces, int rank, int size) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (const at::Tensor& piece : parameter.detach().chunk(pieces, dimension))
    own.push_back(piece.chunk(size, dimension)[rank]);
  become(parameter, at::cat(own, dimension));
}

ModelInParts divide_layers(torch::nn::Module& model, const std::vector<NamedLayout>& table, std::int64_t heads,
                           const LayerParts& parts) {
  if (heads % parts.group->size() != 0) {
    throw UsageError(
        fmt::format("tensor parallel: {} processes cannot have as many of {} heads each; choose another number of them",
                    parts.group->size(), heads));
  }
  std::vector<std::pair<std::shared_ptr<LinearImpl>, LayerLayout>> layers;
  for (const auto& [name, layout] : table) {
    const std::size_t before = layers.size();
    for (const auto& named : linear_modules(model)) {
      if (!ends_with_name(named.first, name)) continue;
      if (std::ranges::any_of(layers, [&](const auto& one) { return one.first == named.second; }))
        throw UsageError(fmt::format("tensor parallel: two names of layers are those of {}", named.first));
      named.second->check_part(named.first, layout, parts.group->size());
      layers.emplace_back(named.second, layout);
    }
    if (layers.size() == before)
      throw UsageError(fmt::format("tensor parallel: the model has no linear module whose name ends in {}", name));
  }
  ModelInParts found;
  for (const auto& [linear, layout] : layers) {
    linear->keep_part(layout, parts);
    for (const at::Tensor& one : linear->divided()) found.divided.push_back(one);
    for (const at::Tensor& one : linear->summands()) found.summands.push_back(one);
  }
  return found;
}

std::vector<at::Tensor> others_than(const std::vector<at::Tensor>& summands, const torch::nn::Module& model) {
  std::vector<at::Tensor> others;
  for (const at::Tensor& p : model.parameters()) {
    const auto is_it = [&](const at::Tensor& summand) { return summand.is_same(p); };
    if (p.requires_grad() && std::ranges::none_of(summands, is_it)) others.push_back(p);
  }
  return others;
}

std::vector<NamedLayout> encoder_layouts() {
  return {{"query", Columns{}},
          {"key", Columns{}},
          {"value", Columns{}},
          {"intermediate.dense", Columns{}},
          {"output.dense", Rows{}}};
}

}  // namespace snug::models
