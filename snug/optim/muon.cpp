#include "snug/optim/muon.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "snug/base/comma_list.h"
#include "snug/base/errors.h"
#include "snug/base/name_pattern.h"
#include "snug/base/nearest.h"
#include "snug/memory/tag.h"

namespace snug::optim {
namespace {

constexpr int kIterations = 5;
constexpr double kLinear = 3.4445, kCubic = -4.775, kQuintic = 2.0315;  // of the polynomial in each iteration
constexpr double kEpsilon = 1e-7;
constexpr double kUpdateSize = 0.2;  // root mean square of AdamW's updates, in learning rates

/// The nearest matrix with orthogonal rows or columns, or about: its singular values lie between 0.7 and 1.2.
at::Tensor orthogonal(const at::Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (tall) x = x.t();
  x.div_(x.norm().clamp_min_(kEpsilon));  // no singular value is above one
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kCubic, kQuintic), x, kLinear);
  }
  return tall ? x.t() : x;
}

}  // namespace

Muon::Muon(const Parameters& parameters, MuonOptions options)
    : Optimizer(parameters, options.others.weight_decay), options_(std::move(options)) {
  refuse_parts(parameters, "muon");
  if (!options_.not_matrices.empty() && parameters.names.size() != parameters.tensors.size())
    throw std::logic_error("Muon: not_matrices needs a name for every parameter");
  const memory::TagScope tag(memory::Tag::Optimizer);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    const bool excepted =
        std::ranges::any_of(options_.not_matrices, [&](const auto& p) { return name_matches(p, parameters.names[i]); });
    Kept& kept = kept_.emplace_back();
    if (parameters.tensors[i].dim() == 2 && !excepted) {
      kept.momentum = zeros_for(i);
    } else {
      kept.first = zeros_for(i);
      kept.second = zeros_for(i);
    }
  }
}

void Muon::update(Update& u) {
  const memory::TagScope tag(memory::Tag::Workspace);
  const AdamWOptions& o = options_.others;
  for (std::size_t k = 0; k < u.members.size(); ++k) {
    at::Tensor& parameter = u.parameters[k];
    Kept& kept = kept_[u.members[k]];
    if (!kept.momentum.defined()) {
      at::_fused_adamw_({parameter}, {u.gradients[k]}, {kept.first}, {kept.second}, {}, {u.steps[k]}, u.learning_rate,
                        o.beta1, o.beta2, u.weight_decay, o.epsilon, /*amsgrad=*/false, /*maximize=*/false);
      continue;
    }
    kept.momentum.lerp_(u.gradients[k], 1 - options_.momentum);
    const at::Tensor direction = orthogonal(at::lerp(u.gradients[k], kept.momentum, options_.momentum));
    const auto longer = static_cast<double>(std::max(parameter.size(0), parameter.size(1)));
    parameter.mul_(1 - u.learning_rate * u.weight_decay);
    parameter.add_(direction, -u.learning_rate * kUpdateSize * std::sqrt(longer));
  }
}

std::vector<Optimizer::OwnState> Muon::own_state(std::size_t parameter) const {
  const Kept& kept = kept_[parameter];
  if (kept.momentum.defined()) return {{"momentum_buffer", kept.momentum}};
  return {{"exp_avg", kept.first}, {"exp_avg_sq", kept.second}};
}

namespace {

constexpr const char* kSeldomMatrices = "*wte*, *wpe*, *embed*, *head*, *classifier*";

/// The default is for any model; what somebody writes is for this one.
std::vector<std::string> not_matrices(const std::string& text, const std::vector<std::string>& names,
                                      const std::vector<std::string>& elsewhere) {
  if (names.empty() && text == kSeldomMatrices) return {};
  std::vector<std::string> patterns = split_at_commas(text);
  for (const std::string& pattern : patterns) {
    const auto matches = [&](const std::string& name) { return name_matches(pattern, name); };
    if (text == kSeldomMatrices || std::ranges::any_of(names, matches) || std::ranges::any_of(elsewhere, matches))
      continue;
    throw UsageError(fmt::format(
        "optimizer.muon_except: no parameter that trains has a name of the pattern \"{}\"; {}patterns are of "
        "whole names, or of their ends behind a dot",
        pattern, did_you_mean(pattern, names)));
  }
  return patterns;
}

}  // namespace

const OptimizerKind& muon_kind() {
  static const std::vector<OwnKey> keys = [] {
    std::vector<OwnKey> all = adamw_keys();
    all.push_back({"muon_momentum", 0.95, "momentum of matrices", kFraction, {}, Resumed::Free});
    all.push_back({"muon_except",
                   std::string(kSeldomMatrices),
                   "parameters that are updated by AdamW even if they are matrices, with commas between",
                   {}});
    return all;
  }();
  static const OptimizerKind kind{
      .name = "muon",
      .updates_by = UpdatesBy::Matrices,
      .keys = keys,
      .make = [](const Parameters& parameters, const OwnValues& values) -> std::unique_ptr<Optimizer> {
        return std::make_unique<Muon>(
            parameters, MuonOptions{.momentum = values.number("muon_momentum"),
                                    .others = adamw_options(values),
                                    .not_matrices = not_matrices(values.text("muon_except"), parameters.names,
                                                                 parameters.names_elsewhere)});
      }};
  return kind;
}

}  // namespace snug::optim
