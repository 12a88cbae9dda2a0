#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::plan {

/// How a plan is made: the best one that is found for a budget (TradeOff), or one of the known schemes (presets.h,
/// module_presets.h, offload_presets.h). See Planner.
namespace strategies {
struct Optimal {};
struct None {};
struct EveryBlock {};
struct ChenSqrt {};
struct Revolve {
  int checkpoints = 1;
};
struct Sequential {
  int segments = 1;
};
struct SelectiveBlocks {
  std::vector<std::string> operators;
};
struct FullUniform {
  int layers = 1;
};
struct FullBlock {
  int layers = 1;
};
struct CoreAttention {};
struct RecomputeModules {
  std::vector<std::string> names;
};
struct RecomputeOutputs {
  std::vector<std::string> names;
};
struct OffloadModules {
  std::vector<std::string> names;
};
struct Offload {
  Bytes min_bytes = 0;
};
struct OffloadedBlocks {
  int kept = 0;
};
/// Keeps everything, as None does, and leaves it to eviction to stay under the budget.
struct Eviction {};
}  // namespace strategies
using Strategy = std::variant<strategies::Optimal, strategies::None, strategies::EveryBlock, strategies::ChenSqrt,
                              strategies::Revolve, strategies::Sequential, strategies::SelectiveBlocks,
                              strategies::FullUniform, strategies::FullBlock, strategies::CoreAttention,
                              strategies::RecomputeModules, strategies::RecomputeOutputs, strategies::OffloadModules,
                              strategies::Offload, strategies::OffloadedBlocks, strategies::Eviction>;

/// How strategies are written: "optimal", "sequential(N)", ...
std::vector<std::string> strategy_forms();

/// Reads a strategy's name and arguments: "optimal", "sequential(4)", "selective(aten::mm,aten::addmm)". Throws
/// UsageError naming what is wrong; whether an argument suits a step is seen when the plan is made.
Strategy strategy_from(std::string_view text);

/// Whether its plans may move values where they are given room. Throws as strategy_from does.
[[nodiscard]] bool may_move(std::string_view text);
/// Whether its plans drop values where there is no budget. Throws as strategy_from does.
[[nodiscard]] bool drops_without_budget(std::string_view text);
/// Whether its plans may compress what autograd saves. Throws as strategy_from does.
[[nodiscard]] bool may_compress(std::string_view text);

}  // namespace snug::plan
