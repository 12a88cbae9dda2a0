#include "snug/models/layer_parts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
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

/// Of each of so many pieces along a dimension, `count` from `first` on.
PartRuns runs_along(const at::Tensor& whole, std::int64_t dimension, std::int64_t pieces, std::int64_t first,
                    std::int64_t count) {
  std::int64_t inner = 1;
  for (std::int64_t i = dimension + 1; i < whole.dim(); ++i) inner *= whole.size(i);
  return {.first = first * inner, .length = count * inner, .stride = whole.size(dimension) / pieces * inner};
}

/// A graph of before, which may be there still, accumulates gradients of the size that it had.
void become(const at::Tensor& parameter, const at::Tensor& part) {
  parameter.mutable_grad() = at::Tensor();
  if (auto* const autograd = torch::autograd::impl::get_autograd_meta(parameter)) autograd->grad_accumulator_.reset();
  parameter.set_data(part);
}

}  // namespace

RandomOfParts::RandomOfParts(int rank, c10::Device device)
    : generator_(at::globalContext().defaultGenerator(
          device.is_cpu() || at::isAccelerator(device.type()) ? device : c10::Device(c10::kCPU))) {
  const std::scoped_lock lock(generator_.mutex());
  std::uint64_t drawn = 0;
  if (generator_.device().is_cpu()) {
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

ParameterPart keep_nothing(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  ParameterPart part{parameter, parameter.sizes().vec()};
  at::Tensor(parameter).requires_grad_(false);
  become(parameter, at::empty({0}, parameter.options().requires_grad(false)));
  return part;
}

ParameterPart keep_part(const at::Tensor& parameter, std::int64_t dimension, std::int64_t first, std::int64_t count) {
  const at::NoGradGuard no_grad;
  ParameterPart part{parameter, parameter.sizes().vec(), runs_along(parameter, dimension, 1, first, count)};
  become(parameter, parameter.detach().narrow(dimension, first, count).clone(at::MemoryFormat::Contiguous));
  return part;
}

ParameterPart keep_piecewise_part(const at::Tensor& parameter, std::int64_t dimension, std::int64_t pieces, int rank,
                                  int size) {
  const at::NoGradGuard no_grad;
  const std::int64_t each = parameter.size(dimension) / pieces / size;
  ParameterPart part{parameter, parameter.sizes().vec(), runs_along(parameter, dimension, pieces, rank * each, each)};
  std::vector<at::Tensor> own;
  for (const at::Tensor& piece : parameter.detach().chunk(pieces, dimension))
    own.push_back(piece.narrow(dimension, rank * each, each));
  become(parameter, at::cat(own, dimension));
  return part;
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
    for (const ParameterPart& one : linear->divided()) found.divided.push_back(one);
    for (const at::Tensor& one : linear->summands()) found.summands.push_back(one);
  }
  return found;
}

bool is_among(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
  return std::ranges::any_of(tensors, [&](const at::Tensor& one) { return one.is_same(tensor); });
}

const ParameterPart* part_of(const std::vector<ParameterPart>& parts, const at::Tensor& parameter) {
  const auto found =
      std::ranges::find_if(parts, [&](const ParameterPart& one) { return one.parameter.is_same(parameter); });
  return found == parts.end() ? nullptr : &*found;
}

std::vector<at::Tensor> others_than(const std::vector<at::Tensor>& summands, const torch::nn::Module& model) {
  std::vector<at::Tensor> others;
  for (const at::Tensor& p : model.parameters()) {
    if (p.requires_grad() && !is_among(summands, p)) others.push_back(p);
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
