#include "snug/optim/adamw_8bit.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "snug/base/errors.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/parallel_for.h"
#include "snug/memory/tag.h"
#include "snug/optim/blockwise_code.h"

namespace snug::optim {
namespace {

constexpr std::int64_t kBlock = kStateBlock, kSmallest = 4096;
constexpr std::int64_t kBlocksPerTask = 32;

/// Of the parameter, of which there may be a part.
bool is_coded(const at::Tensor& parameter) {
  return parameter.numel() >= kSmallest && parameter.scalar_type() != at::kDouble;
}

std::int64_t blocks_of(const at::Tensor& parameter) { return (parameter.numel() + kBlock - 1) / kBlock; }

/// One block of a moment, as numbers.
class Block {
 public:
  Block(std::span<std::uint8_t> codes, float& absmax, const BlockwiseCode& code)
      : codes_(codes), absmax_(absmax), code_(code) {
    for (std::size_t i = 0; i < codes.size(); ++i) numbers_[i] = code.value(codes[i]) * absmax;
  }
  float& operator[](std::size_t i) { return numbers_[i]; }
  void store() {
    absmax_ = 0;
    for (std::size_t i = 0; i < codes_.size(); ++i) absmax_ = std::max(absmax_, std::abs(numbers_[i]));
    const float factor = absmax_ > 0 ? 1 / absmax_ : 0;
    for (std::size_t i = 0; i < codes_.size(); ++i) codes_[i] = code_.nearest(numbers_[i] * factor);
  }

 private:
  std::array<float, kBlock> numbers_;
  std::span<std::uint8_t> codes_;
  float& absmax_;
  const BlockwiseCode& code_;
};

/// The factors of one step.
struct Step {
  float beta1, beta2, epsilon, kept, rate, root_correction;
};

void update_block(std::span<float> weights, std::span<const float> gradients, Block& first, Block& second,
                  const Step& step) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float g = gradients[i];
    first[i] = step.beta1 * first[i] + (1 - step.beta1) * g;
    second[i] = step.beta2 * second[i] + (1 - step.beta2) * g * g;
    const float root = std::sqrt(second[i]) / step.root_correction + step.epsilon;
    weights[i] = weights[i] * step.kept - step.rate * (first[i] / root);
  }
}

}  // namespace

AdamW8bit::AdamW8bit(const Parameters& parameters, AdamWOptions options)
    : Optimizer(parameters, options.weight_decay), options_(options) {
  const memory::TagScope tag(memory::Tag::Optimizer);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    const at::Tensor& p = parameters.tensors[i];
    const bool coded = is_coded(parameters.part(i).whole);
    if (coded && !p.is_cpu()) {
      throw UsageError("optimizer: adamw_8bit runs on the CPU alone, and a parameter is elsewhere; use adamw");
    }
    const auto moment = [&](const BlockwiseCode& code) -> Moment {
      if (!coded) return {zeros_for(i), {}, 0};
      const int zero = code.nearest(0);
      return {at::full({p.numel()}, zero, p.options().dtype(at::kByte)),
              at::zeros({blocks_of(p)}, p.options().dtype(at::kFloat)), zero};
    };
    first_moments_.push_back(moment(BlockwiseCode::with_sign()));
    second_moments_.push_back(moment(BlockwiseCode::without_sign()));
  }
}

void AdamW8bit::update(Update& u) {
  const memory::TagScope tag(memory::Tag::Workspace);
  for (std::size_t k = 0; k < u.members.size(); ++k) {
    at::Tensor& parameter = u.parameters[k];
    Moment& first = first_moments_[u.members[k]];
    Moment& second = second_moments_[u.members[k]];
    if (!first.absmax.defined()) {
      at::_fused_adamw_({parameter}, {u.gradients[k]}, {first.values}, {second.values}, {}, {u.steps[k]},
                        u.learning_rate, options_.beta1, options_.beta2, u.weight_decay, options_.epsilon,
                        /*amsgrad=*/false, /*maximize=*/false);
      continue;
    }
    const double step_number = u.steps[k].item<double>();
    const Step step{.beta1 = static_cast<float>(options_.beta1),
                    .beta2 = static_cast<float>(options_.beta2),
                    .epsilon = static_cast<float>(options_.epsilon),
                    .kept = static_cast<float>(1 - u.learning_rate * u.weight_decay),
                    .rate = static_cast<float>(u.learning_rate / (1 - std::pow(options_.beta1, step_number))),
                    .root_correction = static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, step_number)))};
    const at::Tensor weights = parameter.contiguous(), gradient = u.gradients[k].contiguous();
    using memory::ContentsThere;
    const std::array there{ContentsThere(weights.storage(), memory::Access::Write),
                           ContentsThere(gradient.storage()),
                           ContentsThere(first.values.storage(), memory::Access::Write),
                           ContentsThere(first.absmax.storage(), memory::Access::Write),
                           ContentsThere(second.values.storage(), memory::Access::Write),
                           ContentsThere(second.absmax.storage(), memory::Access::Write)};
    auto* const w = weights.mutable_data_ptr<float>();
    const auto* const g = gradient.const_data_ptr<float>();
    memory::parallel_for(0, blocks_of(parameter), kBlocksPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const auto size = static_cast<std::size_t>(std::min(kBlock, weights.numel() - b * kBlock));
        const auto block_of = [&](Moment& moment, const BlockwiseCode& code) {
          return Block({moment.values.mutable_data_ptr<std::uint8_t>() + b * kBlock, size},
                       moment.absmax.mutable_data_ptr<float>()[b], code);
        };
        Block m = block_of(first, BlockwiseCode::with_sign()), v = block_of(second, BlockwiseCode::without_sign());
        update_block({w + b * kBlock, size}, {g + b * kBlock, size}, m, v, step);
        m.store();
        v.store();
      }
    });
    if (!weights.is_same(parameter)) parameter.copy_(weights);
  }
}

std::vector<Optimizer::OwnState> AdamW8bit::own_state(std::size_t parameter) const {
  const Moment& first = first_moments_[parameter];
  const Moment& second = second_moments_[parameter];
  if (!first.absmax.defined()) return {{"exp_avg", first.values}, {"exp_avg_sq", second.values}};
  return {{"exp_avg", first.values, StateShape::Elements, first.zero},
          {"exp_avg_absmax", first.absmax, StateShape::Blocks},
          {"exp_avg_sq", second.values, StateShape::Elements, second.zero},
          {"exp_avg_sq_absmax", second.absmax, StateShape::Blocks}};
}

const OptimizerKind& adamw_8bit_kind() {
  static const OptimizerKind kind{
      .name = "adamw_8bit",
      .updates_by = UpdatesBy::Blocks,
      .keys = adamw_keys(),
      .make = [](const Parameters& parameters, const OwnValues& values) -> std::unique_ptr<Optimizer> {
        return std::make_unique<AdamW8bit>(parameters, adamw_options(values));
      }};
  return kind;
}

}  // namespace snug::optim
