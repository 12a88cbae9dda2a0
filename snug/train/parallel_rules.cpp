#include "snug/train/parallel_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/described/described_device.h"
#include "snug/optim/optimizer.h"
#include "snug/plan/run/pipeline_schedule.h"
#include "snug/train/config.h"
#include "snug/train/config_applies.h"
#include "snug/train/team.h"

namespace snug::train {

std::string parts_in_words(const TeamLayout& layout) {
  std::vector<std::string> parts;
  for (const auto& [key, size] : {std::pair("tensor", layout.tensor), std::pair("context", layout.context),
                                  std::pair("pipeline", layout.pipeline)}) {
    if (size > 1) parts.push_back(fmt::format("parallel.{} = {}", key, size));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

bool saves_together(const Config& config) {
  return config.parallel.shard != ShardOf::None || config.parallel.tensor > 1 || config.parallel.pipeline > 1;
}

void validate_parallel(const Config& config) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.tensor > 1 && parallel.context > 1) {
    throw UsageError(fmt::format(
        "configuration: parallel.tensor = {} and parallel.context = {}: layers in parts attend by their own "
        "heads, and sequences in parts by some of all; set one of them",
        parallel.tensor, parallel.context));
  }
  const auto check_sequence = [&](std::string_view key, std::int64_t parts) {
    if (config.model.sequence % parts == 0) return;
    throw UsageError(
        fmt::format("configuration: model.sequence = {}, which {} = {} cannot divide evenly; set it to a multiple",
                    config.model.sequence, key, parts));
  };
  if (parallel.pipeline > 1) {
    const plan::PipelineShape shape{.processes = static_cast<int>(parallel.pipeline),
                                    .micro_batches = static_cast<int>(config.train.accumulate)};
    try {
      (void)plan::actions_of(plan::pipeline_schedule_from(parallel.schedule), shape);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("configuration: parallel.pipeline = {}, train.accumulate = {}: {}",
                                   parallel.pipeline, config.train.accumulate, error.what()));
    }
  }
  if (parallel.shard_degree == 1 && parallel.context == 1) {
    throw UsageError(
        "configuration: parallel.shard_degree = 1 leaves each replica all that parallel.shard would divide; set it to "
        "2 or more, or leave both out");
  }
  const bool is_ring = attends_in_a_ring(config);
  if (is_ring && drops_attention(config)) {
    throw UsageError(fmt::format(
        "configuration: parallel.context_by = \"ring\" and model.dropout = {:g}, which \"{}\" has of attention, too: a "
        "ring has none; set model.dropout to 0, or parallel.context_by to \"heads\"",
        config.model.own.number("dropout"), config.model.kind));
  }
  if (const c10::Device device(config.train.device);
      is_ring && !device.is_cpu() && device.type() != described::kDescribed) {
    throw UsageError(fmt::format(
        "configuration: parallel.context_by = \"ring\" and train.device = \"{}\": a ring's attention runs on the CPU "
        "alone; set parallel.context_by to \"heads\"",
        config.train.device));
  }
  check_sequence(is_ring ? "twice parallel.context" : "parallel.context", (is_ring ? 2 : 1) * parallel.context);
  if (parallel.sequence_parallel && parallel.partition_activations) {
    throw UsageError(
        "configuration: parallel.sequence_parallel and parallel.partition_activations: with parts of sequences nothing "
        "is alike in all processes, and activations are in parts anyway; set one of them");
  }
  if (parallel.sequence_parallel) check_sequence("parallel.tensor", parallel.tensor);
  if (parallel.context > 1 && config.data.packing == Packing::Documents) {
    throw UsageError(
        fmt::format("configuration: parallel.context = {} and data.packing = \"documents\": rows of documents need "
                    "whole sequences; "
                    "set data.packing to \"none\", or use parallel.tensor",
                    parallel.context));
  }
  if (parallel.tensor > 1 && config.model.loss == LossKind::Tiled) {
    throw UsageError(fmt::format(
        "configuration: parallel.tensor = {} and model.loss = \"tiled\": each process has the logits of a part of the "
        "vocabulary, all at once; leave model.loss out",
        parallel.tensor));
  }
  if (parallel.tensor > 1 && config.given.contains("model.loss_tile")) {
    throw UsageError(fmt::format(
        "configuration: model.loss_tile = {} does nothing beside parallel.tensor = {}, where each process has "
        "the logits of a part of the vocabulary, all at once; leave it out",
        config.model.loss_tile, parallel.tensor));
  }
}

void check_for_team(const Config& config, const Team& team) {
  if (team.size() == 1) return;
  check_same_settings(config, team);
  const auto refuse = [&](std::string_view key, std::string_view why) {
    throw UsageError(fmt::format("train: {} and {} processes: {}", key, team.size(), why));
  };
  if (!config.memory.allow.empty()) refuse("memory.allow", "each would choose by itself; choose in one process first");
  const optim::UpdatesBy updates_by = optim::optimizer_kind(config.optimizer.kind).updates_by;
  if (config.parallel.shard != ShardOf::None && updates_by == optim::UpdatesBy::Matrices) {
    refuse(fmt::format("parallel.shard = \"{}\" with optimizer.kind = \"{}\"", word(config.parallel.shard),
                       config.optimizer.kind),
           "it updates whole matrices; use adamw, adamw_8bit, lion or sgd, or leave parallel.shard out");
  }
  if (config.parallel.tensor > 1 && updates_by != optim::UpdatesBy::Elements) {
    refuse(
        fmt::format("parallel.tensor = {} with optimizer.kind = \"{}\"", config.parallel.tensor, config.optimizer.kind),
        "what it keeps is of more than one element, and layers are in parts; use adamw, lion or sgd");
  }
  if (config.parallel.tensor > 1 && config.precision.updates == Updates::Stochastic) {
    refuse(fmt::format("parallel.tensor = {} with precision.updates = \"stochastic\"", config.parallel.tensor),
           "each process would round its parts by the same chances; leave precision.updates out");
  }
  if (config.parallel.shard == ShardOf::Parameters && config.parallel.pipeline > 1) {
    refuse(fmt::format("parallel.pipeline = {} with parallel.shard = \"parameters\"", config.parallel.pipeline),
           "weights come and go with a step's micro-batches, and several are under way at once; use \"gradients\"");
  }
  if (config.memory.optimizer == KeptIn::Streamed && config.parallel.pipeline > 1) {
    refuse(
        fmt::format("parallel.pipeline = {} with memory.optimizer = \"streamed\"", config.parallel.pipeline),
        "what is streamed is expected in the order of one pass, and several are under way; leave memory.optimizer out");
  }
  if (config.optimizer.in_backward)
    refuse("optimizer.in_backward = true",
           "weights would be updated before the gradients of all are there; leave it out");
  if (config.memory.weights == KeptIn::Streamed && config.parallel.shard != ShardOf::Parameters)
    refuse("memory.weights = \"streamed\"",
           "gradients of whole weights leave before those of all are there; set parallel.shard = \"parameters\", of "
           "which each process streams its own");
  if (const std::int64_t parts = team.replicas() * config.train.accumulate; config.train.batch % parts != 0) {
    refuse(fmt::format("train.batch = {}", config.train.batch),
           fmt::format("it must be a multiple of {}, the number of {} times train.accumulate", parts,
                       team.replicas() == team.size() ? "processes" : "replicas of the model"));
  }
}

std::vector<std::string> notes_for_team(const Config& config, const Team& team) {
  std::vector<std::string> notes;
  const ParallelConfig& parallel = config.parallel;
  if (parallel.shard != ShardOf::None && (team.size() == 1 || team.sharers()->size() == 1)) {
    notes.push_back(fmt::format("parallel.shard = \"{}\" divides nothing: there is one {}", word(parallel.shard),
                                team.size() == 1 ? "process" : "replica of the model"));
  }
  if (parallel.reduce != ReduceIn::Gradient && team.size() == 1)
    notes.push_back(
        fmt::format("parallel.reduce = \"{}\" adds up nothing: there is one process", word(parallel.reduce)));
  if (team.size() > 1 && saves_together(config) && !config.output.folder.empty() && config.state.every == 0 &&
      config.state.interval == 0) {
    notes.emplace_back(
        "each process has a part of the training state, which is saved at the end alone: if one of them fails before "
        "that, nothing is left; state.every = N saves it every N steps, state.interval = S every S seconds");
  }
  return notes;
}

void check_plan_for_team(const Team& team) {
  if (team.layout().pipeline == 1) return;
  throw UsageError(
      fmt::format("train: --plan and parallel.pipeline = {}: a plan is of one step, and each stage has its own; "
                  "leave --plan out",
                  team.layout().pipeline));
}

}  // namespace snug::train
