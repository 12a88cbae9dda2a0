#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "snug/data/tokenizer_format.h"
#include "snug/train/config_applies.h"
#include "snug/train/config_rules.h"
#include "snug/train/config_values.h"

/// The keys of the configuration, a line each.
namespace snug::train {

/// Calls to(KeyAbout, member, rule) for every key. A new key is a member in config_values.h and a line here: fixed(...)
/// when a resumed run must have it as the run before, varies(...) when it may have another value. Limits keep batch *
/// sequence
/// * width, in bytes, inside 63 bits.
template <class AnyConfig, class Visit>
void visit_keys(AnyConfig& c, Visit&& to) {
  using rules::Anything, rules::Budget, rules::TierBudget, rules::Groups, rules::KnobNames, rules::NameOf, rules::OneOf,
      rules::ScheduleText, rules::StrategyText;
  const auto declared_as = [&to](Resumed resumed) {
    return [&to, resumed](std::string_view section, std::string_view key, auto& member, std::string_view help,
                          const auto& rule, const Applies& applies = kAlways) {
      to(KeyAbout{std::string(section), std::string(key), std::string(help), applies, resumed}, member, rule);
    };
  };
  const auto fixed = declared_as(Resumed::Same), varies = declared_as(Resumed::Free);
  // Keys that members of an open set declare beside themselves.
  const auto own_of = [](const auto& members, auto& values, const auto& declare) {
    std::set<std::string_view> seen;
    for (const auto* member : members) {
      for (const OwnKey& key : member->keys) {
        if (!seen.insert(key.name).second) continue;
        std::visit(
            [&](auto& value) {
              if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::string>) {
                declare(key, value, Anything{});
              } else {
                declare(key, value, key.range);
              }
            },
            values.by_name.at(std::string(key.name)));
      }
    }
  };

  fixed("model", "kind", c.model.kind, "architecture; with model.path by default that of its files",
        NameOf{family_names});
  fixed("model", "blocks", c.model.blocks, "transformer blocks", Range{1, 65536}, kNewModel);
  fixed("model", "width", c.model.width, "features per token, a multiple of heads", Range{1, 262144}, kNewModel);
  fixed("model", "heads", c.model.heads, "attention heads per block", Range{1, 65536}, kNewModel);
  fixed("model", "sequence", c.model.sequence, "tokens per sequence", Range{1, 1048576});
  fixed("model", "vocabulary", c.model.vocabulary, "different tokens", Range{1, 16777216}, kNewModel);
  own_of(model_families(), c.model.own, [&](const OwnKey& key, auto& value, const auto& rule) {
    declared_as(key.resumed)("model", key.name, value, families_help(key), rule, with_families_of(key));
  });
  fixed("model", "path", c.model.path,
        "pretrained " + families_with_files() +
            ": a GGUF file, or a folder as transformers saves it, which decide on shapes",
        Anything{});
  fixed("model", "weights", c.model.weights,
        "how pretrained weights are kept; bf16: products are in bf16, too; packed: as blocks of a GGUF file, frozen "
        "(QLoRA)",
        OneOf<BaseWeights>{});
  fixed("model", "loss", c.model.loss,
        "plain: of all logits at once, as PyTorch has it; tiled: of a few rows at a time, for large vocabularies; "
        "auto: tiled for " +
            families_with_tiled_loss() + ", else plain",
        OneOf<LossKind>{same_loss});
  fixed("model", "loss_tile", c.model.loss_tile,
        "MiB of logits that a tiled loss has at a time: fewer take less memory, and longer", Range{1, 1048576}, kTiled);
  fixed("model", "mlp_tile", c.model.mlp_tile,
        "tokens that the feed-forward part of a block has at a time, for long sequences; 0: all", Range{0, 1073741824});
  fixed("model", "attention", c.model.attention,
        "libtorch: by LibTorch's kernel; products: by whole products over rows, on CPUs faster in bf16, not the same "
        "bits",
        OneOf<models::AttentionMethod>{}, kPlainAttention);

  fixed("lora", "rank", c.lora.rank, "rank of adapters, beside which only lora.modules_to_save train; 0: none",
        Range{0, 65536}, kOwnRank);
  fixed("lora", "alpha", c.lora.alpha, "scale of the adapters' product, over the rank", kPositive, kNewAdapter);
  fixed("lora", "dropout", c.lora.dropout, "probability of dropping an adapter's input", kFraction, kNewAdapter);
  fixed("lora", "targets", c.lora.targets,
        "linear modules, or ends of their names, with commas between; * is any text, as in a shell; all-linear",
        Anything{}, kNewAdapter);
  fixed("lora", "modules_to_save", c.lora.modules_to_save,
        "modules, or ends of their names, with commas between, that train whole beside the adapters", Anything{},
        kNewAdapter);
  fixed("lora", "scale", c.lora.scale, "alpha/rank, or alpha/sqrt(rank) (rsLoRA)", OneOf<models::LoraScale>{},
        kNewAdapter);
  fixed("lora", "adapter", c.lora.adapter, "folder of an adapter as PEFT saves it, to go on with", Anything{},
        kAdapter);

  fixed(
      "data", "path", c.data.path,
      "text file, folder of text files, or file of tokens (.bin); libtorch-headers: the C++ headers of the LibTorch in "
      "use",
      Anything{});
  fixed("data", "tokenizer", c.data.tokenizer,
        data::tokenizer_format_names() + "; auto: the pretrained model's own, else bytes", Anything{}, kTokenizing);
  fixed("data", "packing", c.data.packing,
        "none: windows over the text; documents: rows of whole documents (files) that do not see each other",
        OneOf<Packing>{});
  fixed("data", "validation_fraction", c.data.validation_fraction, "share of the text kept for validation", kFraction,
        kWindows);
  fixed("data", "seed", c.data.seed, "seed of the order of data alone; -1: train.seed", Range{-1});
  varies("data", "workers", c.data.workers,
         "threads that make batches ahead, which changes none of them; 0: each is made when it is needed",
         Range{0, 1024});
  varies("data", "prefetch", c.data.prefetch, "batches at most that wait, where there are workers", Range{1, 65536},
         kWithWorkers);

  fixed("train", "batch", c.train.batch, "sequences per step", Range{1, 1048576});
  fixed("train", "accumulate", c.train.accumulate,
        "micro-batches that a step's batch is divided into, whose gradients are added up before the update",
        Range{1, 1048576});
  varies("train", "steps", c.train.steps, "optimizer steps to run", Range{1});
  fixed("train", "seed", c.train.seed, "seed of weights, dropout and data order", kNotNegative);
  varies("train", "validate_every", c.train.validate_every, "steps between validations; 0: only at the end",
         kNotNegative, kWindowsInRuns);
  varies("train", "validation_batches", c.train.validation_batches, "batches per validation; 0: none", kNotNegative,
         kWindows);
  varies("train", "detect_anomaly", c.train.detect_anomaly,
         "when the loss or a gradient is not finite, run the step again and name the first operator that made it so",
         Anything{}, kInRuns);
  varies("train", "threads", c.train.threads, "CPU threads; 0: LibTorch's default", Range{0, 4096});
  fixed("train", "device", c.train.device, "where the model is, and steps run: cpu, or an accelerator such as cuda:0",
        rules::DeviceName{});

  fixed("optimizer", "kind", c.optimizer.kind, "optimizer", NameOf{optimizer_names});
  varies("optimizer", "learning_rate", c.optimizer.learning_rate, "highest learning rate", kPositive);
  own_of(optim::optimizer_kinds(), c.optimizer.own, [&](const OwnKey& key, auto& value, const auto& rule) {
    declared_as(key.resumed)("optimizer", key.name, value, optimizers_help(key), rule, with_optimizers_of(key));
  });
  varies("optimizer", "groups", c.optimizer.groups,
         "settings of parameters by name, later ones win: \"*.bias: weight_decay=0; embed*: learning_rate=0.5\", "
         "learning rates times the step's",
         Groups{});
  varies("optimizer", "warmup_steps", c.optimizer.warmup_steps, "steps of linear warmup", kNotNegative);
  varies("optimizer", "schedule", c.optimizer.schedule,
         "learning rate behind the warmup; wsd: it stays, and decays over the last optimizer.decay_steps",
         OneOf<LearningRate>{});
  varies("optimizer", "decay_steps", c.optimizer.decay_steps, "steps of the linear decay at the end", Range{1},
         kStable);
  varies("optimizer", "final_fraction", c.optimizer.final_fraction, "fraction of learning_rate that the last step has",
         Range{0, 1}, kDecaying);
  varies("optimizer", "clip_norm", c.optimizer.clip_norm, "largest norm of all gradients together; 0: off",
         kNotNegative, kByNorm);
  varies("optimizer", "clip_norm_order", c.optimizer.clip_norm_order,
         "of that norm: the sum of amounts, the root of squares, the largest amount", OneOf<NormOrder>{}, kOrderOfNorm);
  varies("optimizer", "in_backward", c.optimizer.in_backward,
         "update each weight in the backward pass as soon as its gradient is there, and free that; changes no bit",
         Anything{});
  varies("optimizer", "clip_value", c.optimizer.clip_value, "largest amount of each element of a gradient; 0: off",
         kNotNegative);

  fixed("precision", "compute", c.precision.compute,
        "type that forward and backward compute in; auto: bf16 where the processor multiplies it, else fp32",
        OneOf<Compute>{same_compute});
  fixed("precision", "weights", c.precision.weights, "type of the weights of new models", OneOf<TrainedWeights>{},
        kNewModel);
  fixed("precision", "updates", c.precision.updates,
        "how weights in bf16 are updated: in a copy in fp32, or without one, rounded up or down by chance",
        OneOf<Updates>{}, kFewBits);
  fixed("precision", "init_scale", c.precision.init_scale, "loss scale that a run begins with", kPositive, kScaling);
  varies("precision", "growth_factor", c.precision.growth_factor, "of the loss scale when it grows",
         Range{.low = 1, .low_excluded = true}, kScaling);
  varies("precision", "backoff_factor", c.precision.backoff_factor, "of the loss scale when a gradient overflows",
         Range{.low = 0, .high = 1, .low_excluded = true, .high_excluded = true}, kScaling);
  varies("precision", "growth_interval", c.precision.growth_interval,
         "steps in a row without an overflow, after which the loss scale grows", Range{1}, kScaling);

  varies("memory", "budget", c.memory.budget, "all memory that tensors may take, or percent of the unplanned peak",
         Budget{});
  varies("memory", "host_budget", c.memory.host_budget,
         "memory of the host, outside of all budgets, that a plan within one may move to; empty: nothing is moved",
         TierBudget{});
  varies("memory", "disk_budget", c.memory.disk_budget,
         "room on a disk, in the folder that TMPDIR names, that a plan may move to; empty: nothing is moved there",
         TierBudget{});
  varies(
      "memory", "weights", c.memory.weights,
      "where weights, gradients and optimizer state are: in the device's memory, or on the host or the disk, and in a "
      "window of it while they are used",
      OneOf<KeptIn>{}, kWithBudget);
  varies("memory", "optimizer", c.memory.optimizer,
         "where optimizer state alone is: in the device's memory, or on the host or the disk, and in a window of it "
         "while weights are updated",
         OneOf<KeptIn>{}, kWithResidentWeights);
  varies("memory", "activations", c.memory.activations,
         "what backward may get of the tensors that autograd saves, where a step does not fit or is slower without: "
         "the same bits, or what so many leave",
         OneOf<Activations>{});
  varies("memory", "arena", c.memory.arena,
         "let what steps take of an accelerator's memory lie in one range of it, at places that are chosen once two "
         "steps have asked for the same, so that none is lost between; changes no bit",
         Anything{}, kOnAccelerators);
  varies("memory", "strategy", c.memory.strategy, "how the plan is made", StrategyText{});
  varies("memory", "allow", c.memory.allow,
         "what may be changed to fit the budget in less time, with commas between: " + knob_names(), KnobNames{},
         kWithBudget);
  varies(
      "memory", "check_first_step", c.memory.check_first_step,
      "compare each value that is recomputed for the first time with what it was, and then one value in each step, in "
      "turn; a difference ends the run before weights are updated",
      Anything{}, kInRuns);
  varies("memory", "verify_replay_every", c.memory.verify_replay_every,
         "each so many steps, check that what is made again is what was dropped; 0: never", kNotNegative, kInRuns);
  varies("memory", "verify_replay_by", c.memory.verify_replay_by,
         "hashes: a difference is found to the 4 KiB; values: to the element, in memory that no budget counts",
         OneOf<VerifyBy>{}, kVerifying);

  varies("parallel", "timeout", c.parallel.timeout,
         "seconds that processes of one run wait for each other, to meet and in each collective",
         Range{.low = 0, .high = 1e6, .low_excluded = true}, kInRuns);
  fixed("parallel", "reduce", c.parallel.reduce,
        "type in which processes of one run add up their gradients: that of each, or another; bf16 is half the traffic "
        "of fp32, and fewer bits",
        OneOf<ReduceIn>{}, kInRuns);
  varies("parallel", "shard", c.parallel.shard,
         "what is divided among the processes of one run (ZeRO 1, 2, 3): the optimizer's state, or gradients of each "
         "micro-batch too, or weights as well",
         OneOf<ShardOf>{}, kInRuns);
  varies("parallel", "shard_degree", c.parallel.shard_degree,
         "replicas that divide it among them, neighbours by rank as those of a machine, while others have it again "
         "(hybrid shard); 0: all",
         Range{0, 65536}, kWithShards);
  varies(
      "parallel", "tensor", c.parallel.tensor,
      "processes that have a part of every layer each (tensor parallel): of its heads, its feed-forward part and the "
      "vocabulary",
      Range{1, 1024}, kInRuns);
  varies("parallel", "sequence_parallel", c.parallel.sequence_parallel,
         "between layers in parts each of these processes has a part of every sequence, which divides activations "
         "there, too",
         Anything{}, kWithLayersInParts);
  varies("parallel", "partition_activations", c.parallel.partition_activations,
         "what blocks in parts begin with, which all these processes have alike, may be kept in parts, and gathered in "
         "the "
         "backward pass, as plans have it",
         Anything{}, kWithLayersInParts);
  varies("parallel", "context", c.parallel.context,
         "processes that have a part of every sequence each, and attend to all of it (context parallel)",
         Range{1, 1024}, kInRuns);
  varies("parallel", "context_by", c.parallel.context_by,
         "how they attend to it: each by some of the heads; or by all, to the keys of one process after the other, "
         "for any number of heads (ring attention)",
         OneOf<models::ContextMethod>{}, kWithSequencesInParts);
  varies(
      "parallel", "pipeline", c.parallel.pipeline,
      "processes that have some of the layers each, through which the train.accumulate micro-batches of a step go one "
      "behind the other (pipeline)",
      Range{1, 1024}, kInRuns);
  varies("parallel", "schedule", c.parallel.schedule, "order in which they go forward and backward there",
         ScheduleText{}, kWithStages);

  varies(
      "state", "every", c.state.every,
      "save the training state in output.folder every so many steps; 0: by state.interval. When a run ends, is stopped "
      "or fails, the state is always saved",
      kNotNegative, kInRuns);
  varies(
      "state", "interval", c.state.interval,
      "save the training state after the first step that ends so many seconds after the last save; 0: never. Without "
      "effect if state.every is set and this is not",
      Range{0, 31536000}, kWithFolder);
  varies("state", "last", c.state.last, "how many of the newest states stay", Range{1}, kWithFolder);
  varies("state", "best", c.state.best, "how many of those with the smallest validation loss stay beside them",
         kNotNegative, kMeasuredStates);
  varies("state", "write", c.state.write,
         "background: while training goes on, as far as the budget has room for a copy; wait: before it goes on",
         OneOf<StateWrite>{}, kWithFolder);

  varies("monitor", "interval", c.monitor.interval,
         "seconds between samples of memory in memory.jsonl, beside one at the end of each step; 0: none",
         Range{0, 86400}, kWithRunFolder);
  varies("monitor", "growth_steps", c.monitor.growth_steps,
         "an alarm when memory grew all the while over so many steps; 0: none", Range{0, 1048576}, kInRuns);
  varies("monitor", "headroom", c.monitor.headroom,
         "an alarm when less than this share of the device's memory is free, on the CPU of the machine's; 0: none",
         Range{.low = 0, .high = 1, .high_excluded = true}, kInRuns);

  varies("output", "folder", c.output.folder,
         "where metrics, training state and what finetune trained go; empty: write none", Anything{}, kInRuns);
}

}  // namespace snug::train
