#include "snug/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/offloaded.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/tag.h"
#include "snug/optim/few_bits.h"
#include "snug/optim/stochastic_rounding.h"

namespace snug::optim {

Optimizer::Optimizer(const Parameters& parameters, double weight_decay)
    : parameters_(parameters.tensors),
      groups_(grouped(parameters)),
      group_of_(parameters_.size()),
      few_bits_(parameters.few_bits) {
  const memory::TagScope tag(memory::Tag::Optimizer);
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g].weight_decay) groups_[g].weight_decay = weight_decay;
    for (const std::size_t i : groups_[g].members) group_of_[i] = g;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) parts_.push_back(parameters.part(i));
  const bool masters = std::holds_alternative<MasterWeights>(few_bits_);
  for (const at::Tensor& p : parameters_) {
    if (!masters && p.scalar_type() == at::kHalf) {
      throw UsageError("optimizer: stochastic rounding is for parameters in bf16, and one is in fp16; keep masters");
    }
    if (!masters && has_few_bits(p) && !p.is_cpu()) {
      throw UsageError(
          "optimizer: stochastic rounding runs on the CPU alone, and a parameter is elsewhere; keep masters");
    }
    masters_.push_back(masters && has_few_bits(p) ? p.detach().to(at::kFloat) : at::Tensor());
    steps_.push_back(at::zeros({}, p.options().dtype(at::kFloat)));
  }
}

at::Tensor Optimizer::zeros_for(std::size_t parameter) const {
  const at::Tensor& p = parameters_[parameter];
  return at::zeros_like(p, has_few_bits(p) ? at::kFloat : p.scalar_type());
}

void Optimizer::run(Update& u) {
  for (const std::size_t i : u.members) {
    steps_[i].add_(1);
    u.steps.push_back(steps_[i]);
  }
  update(u);
}

void Optimizer::update_in_fp32(Update alone, std::size_t parameter) {
  const memory::TagScope tag(memory::Tag::Workspace);
  const at::Tensor& p = parameters_[parameter];
  alone.members = {parameter};
  alone.gradients = {p.grad().to(at::kFloat)};
  alone.parameters = {masters_[parameter].defined() ? masters_[parameter] : p.to(at::kFloat)};
  run(alone);
  if (const auto* const rounding = std::get_if<StochasticRounding>(&few_bits_)) {
    const auto step = static_cast<std::uint64_t>(steps_[parameter].item<float>());
    round_stochastically(alone.parameters.front(), p,
                         {.seed = rounding->seed,
                          .step = step,
                          .tensor = parts_[parameter].index,
                          .first = static_cast<std::uint64_t>(parts_[parameter].first)});
  } else {
    p.copy_(masters_[parameter]);
  }
}

void Optimizer::update_members(const ParameterGroup& group, const std::vector<std::size_t>& members,
                               double learning_rate) {
  const auto settings = [&] {
    Update u;
    u.learning_rate = learning_rate * group.learning_rate;
    u.weight_decay = *group.weight_decay;
    return u;
  };
  std::vector<Update> together;  // of each device
  const auto beside = [&](const at::Tensor& p) -> Update& {
    for (Update& u : together) {
      if (u.parameters.front().device() == p.device()) return u;
    }
    return together.emplace_back(settings());
  };
  for (const std::size_t i : members) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    if (has_few_bits(parameters_[i])) {
      update_in_fp32(settings(), i);  // one at a time, so that one gradient at most is there in fp32
      continue;
    }
    Update alone = settings();
    const bool is_alone = is_streamed(i);
    Update& u = is_alone ? alone : beside(parameters_[i]);
    u.members.push_back(i);
    u.parameters.push_back(parameters_[i]);
    u.gradients.push_back(gradient);
    if (is_alone) run_and_tell(u);
  }
  for (Update& u : together) run_and_tell(u);
}

void Optimizer::run_and_tell(Update& u) {
  run(u);
  // Fused kernels write parameters without telling autograd's version counters of it in every build.
  for (at::Tensor& p : u.parameters) p.unsafeGetTensorImpl()->bump_version();
}

/// Those of all parameters together need not have room in the device's memory.
bool Optimizer::is_streamed(std::size_t parameter) const {
  const at::Tensor& p = parameters_[parameter];
  return memory::has_owner(p) || memory::has_owner(p.grad()) ||
         std::ranges::any_of(own_state(parameter), [](const OwnState& own) { return memory::has_owner(own.tensor); });
}

void Optimizer::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  for (const ParameterGroup& group : groups_) update_members(group, group.members, learning_rate);
}

void Optimizer::step(std::size_t parameter, double learning_rate) {
  const at::NoGradGuard no_grad;
  update_members(groups_[group_of_[parameter]], {parameter}, learning_rate);
}

namespace {

/// What tensors hold, out of the device's memory, until it is put back.
class Aside {
 public:
  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const c10::Storage& storage = tensor.storage();
    held_.emplace_back(storage, memory::Offloaded(storage, static_cast<Bytes>(storage.nbytes()), tiers_));
  }
  void put_back() const {
    for (const auto& [storage, contents] : held_) contents.write_to(storage);
  }

 private:
  memory::Tiers tiers_;
  std::vector<std::pair<c10::Storage, memory::Offloaded>> held_;
};

}  // namespace

/// Of the parameters in between.
template <class Step>
void Optimizer::rehearse_of(std::size_t first, std::size_t end, const Step& step) {
  const at::NoGradGuard no_grad;
  Aside aside;
  // Counted up before the kernel runs, which may find no memory.
  struct Uncounted {
    std::vector<at::Tensor>& counts;
    std::size_t first, end;
    ~Uncounted() {
      for (std::size_t i = first; i < end; ++i) counts[i].zero_();
    }
  };
  // A learning rate of zero neither moves nor decays a weight, and a master copy that has not moved rounds to the
  // weight it was made of.
  try {
    for (std::size_t i = first; i < end; ++i) {
      if (parameters_[i].grad().defined()) parameters_[i].grad().zero_();
      if (steps_[i].item<float>() == 0) continue;
      // Moments that are not zero turn a weight's negative zero, and another process may read it.
      for (const OwnState& own : own_state(i)) {
        aside.add(own.tensor);
        own.tensor.fill_(own.at_first);
      }
      aside.add(steps_[i]);
      steps_[i].zero_();
    }
    const Uncounted uncounted{steps_, first, end};
    step();
  } catch (...) {
    aside.put_back();
    throw;
  }
  aside.put_back();
}

void Optimizer::rehearse() {
  rehearse_of(0, parameters_.size(), [this] { step(0.0); });
}

void Optimizer::rehearse(std::size_t parameter) {
  rehearse_of(parameter, parameter + 1, [&] { step(parameter, 0.0); });
}

namespace {

void place_in_whole(PartOfState& part, StateShape shape, const PartOf& of) {
  switch (shape) {
    case StateShape::AsParameter:
      part.shape = of.whole.sizes().vec();
      part.first = of.first;
      break;
    case StateShape::Elements:
      part.shape = {of.whole.numel()};
      part.first = of.first;
      break;
    case StateShape::Blocks:
      part.shape = {(of.whole.numel() + kStateBlock - 1) / kStateBlock};
      part.first = of.first / kStateBlock;
      break;
    case StateShape::One:
      break;
  }
}

}  // namespace

void Optimizer::zero_grad() {
  for (at::Tensor& p : parameters_) p.mutable_grad() = at::Tensor();
}

std::vector<at::Tensor> Optimizer::state() const {
  std::vector<at::Tensor> state;
  for (auto& [name, tensor] : named_state(std::vector<std::string>(parameters_.size()))) state.push_back(tensor);
  return state;
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::named_state(
    const std::vector<std::string>& parameter_names) const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (PartOfState& part : parts_of_state(parameter_names)) named.emplace_back(std::move(part.name), part.tensor);
  return named;
}

std::vector<PartOfState> Optimizer::parts_of_state(const std::vector<std::string>& parameter_names) const {
  if (parameter_names.size() != parameters_.size()) {
    throw std::logic_error("Optimizer::named_state: a name for every parameter");
  }
  std::vector<PartOfState> parts;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto add = [&](const OwnState& own) {
      PartOfState part{std::string(own.name) + "." + parameter_names[i],
                       own.tensor,
                       own.tensor.sizes().vec(),
                       0,
                       parts_[i].whole,
                       own.shape};
      if (!parts_[i].whole.is_same(parameters_[i])) place_in_whole(part, own.shape, parts_[i]);
      parts.push_back(std::move(part));
    };
    for (const OwnState& own : own_state(i)) add(own);
    add({"step", steps_[i], StateShape::One});
    if (masters_[i].defined()) add({"master", masters_[i]});
  }
  return parts;
}

}  // namespace snug::optim
