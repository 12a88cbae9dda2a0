#include "snug/optim/grad_scaler.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/tag.h"
#include "snug/optim/optimizer.h"

namespace snug::optim {
namespace {

/// Of one device and type, which are unscaled in one call.
struct Alike {
  c10::Device device;
  c10::ScalarType dtype;
  std::vector<at::Tensor> gradients;
};

std::vector<Alike> alike(const std::vector<at::Tensor>& parameters) {
  std::vector<Alike> groups;
  for (const at::Tensor& p : parameters) {
    if (!p.grad().defined()) continue;
    if (p.grad().scalar_type() == at::kHalf) throw Error("GradScaler: Attempting to unscale FP16 gradients.");
    const at::Tensor gradient = p.grad().is_sparse() ? p.grad()._values() : p.grad();
    const auto same = std::ranges::find_if(groups, [&](const Alike& group) {
      return group.device == gradient.device() && group.dtype == gradient.scalar_type();
    });
    (same == groups.end() ? groups.emplace_back(Alike{gradient.device(), gradient.scalar_type(), {}}) : *same)
        .gradients.push_back(gradient);
  }
  return groups;
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options) {
  if (!options_.enabled) return;
  if (!(options_.growth_factor > 1)) throw UsageError("GradScaler: The growth factor must be > 1.0.");
  if (!(options_.backoff_factor < 1 && options_.backoff_factor > 0))
    throw UsageError("GradScaler: The backoff factor must be < 1.0, and more than 0.");
  if (!(options_.init_scale > 0) || options_.growth_interval < 1)
    throw UsageError("GradScaler: the first scale and the growth interval must be positive");
  const memory::TagScope tag(memory::Tag::Optimizer);
  scale_ = at::full({}, options_.init_scale, at::kFloat);
  growth_tracker_ = at::zeros({}, at::kInt);
}

at::Tensor GradScaler::scale(const at::Tensor& output) const {
  return options_.enabled ? output * scale_.to(output.device(), /*non_blocking=*/true) : output;
}

std::vector<at::Tensor> GradScaler::parameters_of(const Optimizer& optimizer) { return optimizer.parameters(); }

std::vector<at::Tensor> GradScaler::parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

void GradScaler::unscale_for(const void* optimizer, const std::vector<at::Tensor>& parameters) {
  if (!options_.enabled) return;
  const at::NoGradGuard no_grad;
  const OfOptimizer& before = optimizers_[optimizer];
  if (before.stage == Stage::Unscaled) {
    throw Error("GradScaler: unscale_() has already been called on this optimizer since the last update().");
  }
  if (before.stage == Stage::Stepped) throw Error("GradScaler: unscale_() is being called after step().");
  OfOptimizer now{.stage = Stage::Unscaled, .found_inf = {}};
  // The reciprocal in fp64: in fp32 some compilers are imprecise.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  for (const Alike& group : alike(parameters)) {
    at::Tensor found = at::zeros({}, at::TensorOptions(group.device).dtype(at::kFloat));
    const at::Tensor there = inverse.to(group.device);
    std::vector<at::Tensor> together;
    for (const at::Tensor& gradient : group.gradients) {
      if (!memory::has_owner(gradient)) {
        together.push_back(gradient);
        continue;
      }
      std::vector<at::Tensor> alone{gradient};  // as all of those need not have room in the device's memory
      at::_amp_foreach_non_finite_check_and_unscale_(alone, found, there);
    }
    if (!together.empty()) at::_amp_foreach_non_finite_check_and_unscale_(together, found, there);
    now.found_inf.push_back(found);
  }
  if (others_.largest) {
    const auto is_set = [](const at::Tensor& found) { return found.item<float>() != 0; };
    std::int64_t any = std::ranges::any_of(now.found_inf, is_set) ? 1 : 0;
    others_.largest({&any, 1});
    now.found_inf = {at::full({}, static_cast<double>(any), at::kFloat)};
  }
  optimizers_[optimizer] = std::move(now);
}

bool GradScaler::overflowed(const void* optimizer) const {
  const auto known = optimizers_.find(optimizer);
  return known != optimizers_.end() &&
         std::ranges::any_of(known->second.found_inf, [](const at::Tensor& t) { return t.item<float>() != 0; });
}

bool GradScaler::step_for(const void* optimizer, const std::vector<at::Tensor>& parameters,
                          const std::function<void()>& run) {
  if (!options_.enabled) return run(), true;
  if (optimizers_[optimizer].stage == Stage::Stepped)
    throw Error("GradScaler: step() has already been called since the last update().");
  if (optimizers_[optimizer].stage == Stage::Ready) unscale_for(optimizer, parameters);
  if (optimizers_[optimizer].found_inf.empty())
    throw Error("GradScaler: No inf checks were recorded for this optimizer.");
  const bool runs = !overflowed(optimizer);
  if (runs) run();
  optimizers_[optimizer].stage = Stage::Stepped;
  return runs;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  const at::NoGradGuard no_grad;
  if (new_scale) {
    scale_.fill_(*new_scale);
    optimizers_.clear();
    return;
  }
  std::optional<at::Tensor> found;
  for (const auto& [optimizer, state] : optimizers_) {
    for (const at::Tensor& inf : state.found_inf) {
      found = found ? found->add(inf.to(scale_.device())) : inf.to(scale_.device());
    }
  }
  if (!found) throw Error("GradScaler: No inf checks were recorded prior to update.");
  at::_amp_update_scale_(scale_, growth_tracker_, *found, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  optimizers_.clear();
}

double GradScaler::get_scale() const { return options_.enabled ? scale_.item<double>() : 1.0; }

nlohmann::json GradScaler::state_dict() const {
  if (!options_.enabled) return nlohmann::json::object();
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"_growth_tracker", growth_tracker_.item<std::int64_t>()}};
}

void GradScaler::load_state_dict(const nlohmann::json& state) {
  if (!options_.enabled) return;
  const JsonFile file = JsonFile::parsed(state, {.name = "GradScaler: its state"});
  if (state.is_object() && state.empty()) {
    throw UsageError(
        "GradScaler: The source state dict is empty, possibly because it was saved from a disabled instance of "
        "GradScaler.");
  }
  const JsonField root = file.root();
  GradScalerOptions loaded = options_;
  const auto scale = root.required<double>("scale", kPositive);
  loaded.growth_factor = root.required<double>("growth_factor");
  loaded.backoff_factor = root.required<double>("backoff_factor");
  loaded.growth_interval = root.required<std::int64_t>("growth_interval");
  const auto tracker = root.required<std::int64_t>("_growth_tracker");
  options_ = loaded;
  scale_.fill_(scale);
  growth_tracker_.fill_(tracker);
}

}  // namespace snug::optim
