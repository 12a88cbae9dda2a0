#include "tests/programs/program.h"

#include <fmt/format.h>

#include <ostream>

#include "tests/programs/layers.h"
#include "tests/programs/state.h"

namespace snug::programs {
namespace {

const std::vector<Kind>& all_kinds() {
  static const std::vector<Kind> kinds = [] {
    std::vector<Kind> all;
    // Those that matter most twice.
    for (const auto& family : {arithmetic_kinds(), view_kinds(), in_place_kinds(), random_kinds(), layer_kinds(),
                               control_kinds(), in_place_kinds(), view_kinds()}) {
      all.insert(all.end(), family.begin(), family.end());
    }
    return all;
  }();
  return kinds;
}

const Kind& kind_of(const Instruction& i) { return all_kinds()[i.kind % all_kinds().size()]; }

}  // namespace

bool State::run(const Instruction& i) {
  at = live[i.first % live.size()].device();
  try {
    kind_of(i).run(*this, i);
    return true;
  } catch (const c10::Error&) {  // shapes that do not go together, a view that may not be written
    return false;
  }
}

std::size_t kinds() { return all_kinds().size(); }

std::string name_of(const Instruction& i) {
  return fmt::format("{} {} of {} and {}", kind_of(i).name, i.variant, i.first, i.second);
}

void showValue(const Program& program, std::ostream& out) {
  out << fmt::format("seed {}{}", program.seed, program.second_order ? ", second order" : "");
  for (const Instruction& i : program.instructions) {
    out << fmt::format("\n  {{{}, {}, {}, {}}},  // {}", i.kind, i.variant, i.first, i.second, name_of(i));
  }
}

World::World(std::uint16_t seed) {
  torch::manual_seed(seed);
  weights_ = {torch::randn({5, 4}), torch::randn({4}), torch::randn({3, 1}, at::kDouble) * 0.5,
              torch::randn({2, 3, 2})};
  const std::vector<c10::Device> devices = testing::test_devices();
  weights_[2] = weights_[2].to(devices.back());
  for (at::Tensor& w : weights_) w.requires_grad_();
  data_ = {torch::randn({3, 4}), torch::rand({4}).to(devices.back())};
  modules_ = make_layers();
  for (const auto& m : modules_) {
    for (const at::Tensor& p : m->parameters()) weights_.push_back(p);
  }
  for (const at::Tensor& b : buffers()) first_buffers_.push_back(b.clone());
  for (const at::Tensor& w : weights_) first_weights_.push_back(w.detach().clone());
}

std::vector<at::Tensor> World::buffers() const {
  std::vector<at::Tensor> all = data_;  // programs may write to it
  for (const auto& m : modules_) {
    for (const at::Tensor& b : m->buffers()) all.push_back(b);
  }
  return all;
}

void World::reset(std::uint16_t seed) {
  const torch::NoGradGuard no_grad;
  const auto now = buffers();
  for (std::size_t k = 0; k < now.size(); ++k) now[k].copy_(first_buffers_[k]);
  for (std::size_t k = 0; k < weights_.size(); ++k) {
    // Written through a view that autograd does not follow.
    if (!at::equal(weights_[k], first_weights_[k])) weights_[k].copy_(first_weights_[k]);
    weights_[k].mutable_grad() = at::Tensor();
  }
  torch::manual_seed(seed);
}

at::Tensor World::run(const Program& program, const RegionCalls& regions) {
  constexpr std::size_t kOwnWeights = 4;  // that instructions work on; the others belong to modules
  State s;
  s.live.assign(weights_.begin(), weights_.begin() + kOwnWeights);
  s.weights = s.live.size();
  // Programs may write to them: contents stay, history does not.
  for (const at::Tensor& d : data_) s.live.push_back(d.detach());
  s.modules = &modules_;
  s.regions = &regions;
  trace_.clear();
  for (std::size_t k = 0; k < program.instructions.size(); k += 1 + std::exchange(s.taken, 0)) {
    s.behind = std::span(program.instructions).subspan(k + 1);
    trace_ += s.run(program.instructions[k]) ? '.' : 'x';
  }
  for (; s.open_regions > 0; --s.open_regions) regions.close();
  outputs_.clear();
  at::Tensor loss;
  for (std::size_t k = s.weights; k < s.live.size(); ++k) {
    const at::Tensor& value = s.live[k];
    outputs_.push_back(value.detach().clone());
    if (!value.requires_grad() || value.numel() == 0) continue;
    try {
      const at::Tensor part = value.to(at::kDouble).sum().to(testing::test_device()) / static_cast<double>(k + 1);
      loss = loss.defined() ? loss + part : part;
    } catch (const c10::Error&) {  // one of several views from one operator, whose base was written
      trace_ += 'x';
    }
  }
  return loss;
}

}  // namespace snug::programs
