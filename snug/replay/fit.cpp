#include "snug/replay/fit.h"

#include <fmt/format.h>

#include <string>

#include "snug/base/errors.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/tiers.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/strategy.h"
#include "snug/replay/agreed_recording.h"
#include "snug/replay/moves.h"
#include "snug/replay/other_devices.h"
#include "snug/replay/planned_step.h"
#include "snug/replay/record_evicting.h"
#include "snug/replay/step_arena.h"
#include "snug/replay/window_choice.h"

namespace snug::replay {

namespace {

std::string what_room_would_change(Bytes without_room) {
  if (without_room == 0) return {};
  return fmt::format(
      "; or raise the host's or the disk's budget for what is streamed: {} that the optimizer keeps found no room "
      "there, and had to stay",
      format_bytes(without_room));
}

void check_limit(std::optional<Bytes> limit) {
  if (limit && *limit <= 0) throw UsageError(fmt::format("fit: the budget is {} bytes; it must be positive", *limit));
}

}  // namespace

RecordedStep record_step_within(std::optional<Bytes> limit, const Forward& forward, memory::DeviceMemory& memory,
                                const RecordOptions& options) {
  Agreement& group = *options.agreement;
  check_limit(limit);
  // Close to the smallest budget it depends on the order of evictions whether there is always something left to evict:
  // where one order fails, another may not.
  std::optional<OutOfBudget::Details> least;
  const auto budget_on = [&](c10::Device device) -> std::optional<Bytes> {
    if (device == memory.device()) return limit;
    for (const DeviceBudget& other : options.other_budgets) {
      if (memory::with_index(other.device) == device) return other.bytes;
    }
    return std::nullopt;
  };
  Bytes without_room = 0;
  for (const EvictionCost cost : {EvictionCost::Timeless, EvictionCost::Measured}) {
    const Bytes before = options.streamed ? options.streamed->totals().without_room : 0;
    try {
      const memory::HeldLimit held(memory, limit);  // without one, too: that of the machine counts
      memory.release_cached();
      return record_step_evicting(cost, forward, memory, options);
    } catch (const RefusedElsewhere&) {
    } catch (const EndedByAnother&) {
      (void)ask(group, Vote::No);
    } catch (...) {
      const auto refusal = memory::refusal_in(std::current_exception());
      // Of a device without a budget here somebody else has set the limit, but for that of the machine.
      const bool is_of_machine = refusal && !limit && refusal->device == memory.device() && refusal->stats.limit;
      if (!refusal || !(budget_on(refusal->device) || is_of_machine)) {
        tell_failure_in_step(group);
        throw;
      }
      // Others may wait for this process in a collective of the step: they cannot try once more.
      const bool was_the_last = group.has_collectives();
      was_the_last ? tell_failure_in_step(group) : static_cast<void>(ask(group, Vote::No));
      const auto taken = [](const OutOfBudget::Details& d) { return d.stats.allocated + d.requested; };
      if (options.streamed) without_room = options.streamed->totals().without_room - before;
      if (!least || (refusal->device == least->device && taken(*refusal) < taken(*least))) least = refusal;
      if (was_the_last) break;
    }
  }
  if (!least) {
    throw Error(
        fmt::format("fit: the step was recorded {} here, but not in another process of the group, which "
                    "says what it takes; raise the budget there, or use a smaller batch",
                    limit                            ? "within " + format_bytes(*limit)
                    : !options.other_budgets.empty() ? "within the budgets"
                                                     : "without a budget"));
  }
  // Everything that can be evicted was; what was missing then is what is missing.
  const Bytes budget = budget_on(least->device).value_or(least->stats.limit.value_or(0));
  const Bytes floor = plan::Budget::for_limit(budget).floor_for(least->stats.allocated + least->requested);
  throw DoesNotFit({.budget = budget,
                    .floor = floor,
                    .static_by_tag = least->stats.by_tag,
                    .step_bytes = least->requested,
                    .peak_op = least->operation,
                    .strategy = "eviction",
                    .recorded = !limit && least->device == memory.device() ? DoesNotFit::Floor::Recorded::ToMachine
                                : options.streamed != nullptr              ? DoesNotFit::Floor::Recorded::ToNeededBudget
                                                                           : DoesNotFit::Floor::Recorded::ToBudget,
                    .device = least->device == memory.device() ? std::string() : least->device.str(),
                    .change = what_room_would_change(without_room)});
}

namespace {

void check_lossy(plan::Codec codec) {
  if (codec != plan::Codec::None && !plan::is_lossy(codec))
    throw UsageError("fit: `lossy` takes BFloat16, Float8, Int8 or Int4; other codecs need not be allowed");
}

/// The memory that the budget is for. Of several devices the CPU would be the wrong one to guess.
memory::DeviceMemory& checked(FitOptions& options, std::optional<c10::Device> device_of_sample) {
  if (!options.device) options.device = device_of_sample;
  if (const auto devices = memory::devices(); !options.device && devices.size() > 1) {
    throw UsageError(fmt::format(
        "fit: no tensor in the sample tells the device whose memory the budget is for, and there are {}; set "
        "`device`",
        devices.size()));
  }
  if (!options.device) options.device = c10::kCPU;
  if (options.optimizer && options.update)
    throw UsageError("fit: it has an optimizer and an update; give one of them, the update if it runs the optimizer");
  if (options.arena) (void)StepArena::of(memory::device_memory(*options.device));  // throws where it has none
  if (options.lossy != plan::Codec::None && !plan::may_compress(options.strategy)) {
    throw UsageError(
        fmt::format("fit: the strategy \"{}\" leaves nothing to codecs; leave `lossy` out", options.strategy));
  }
  return memory::device_memory(*options.device);
}

std::shared_ptr<memory::Tiers> tiers_of(const FitOptions& options) {
  const memory::TierBudgets budgets{.host = options.host_budget, .disk = options.disk_budget};
  if (!options.streamed) return std::make_shared<memory::Tiers>(budgets);
  if (budgets != memory::TierBudgets()) {
    throw UsageError(
        "fit: values go to the tiers of what is streamed, which have budgets of their own; leave host_budget and "
        "disk_budget to StreamOptions");
  }
  return options.streamed->tiers();
}

}  // namespace

std::vector<RecordedStep> record_micro_batches(std::int64_t count, std::optional<Bytes> limit, const Forward& forward,
                                               memory::DeviceMemory& memory, const RecordOptions& options) {
  or_tell(*options.agreement, [&] {
    check_limit(limit);
    if (count < 1) throw UsageError(fmt::format("fit: {} micro-batches; there is one at least", count));
    check_other_budgets(options.other_budgets, memory.device());
    check_lossy(options.lossy);
  });
  (void)ask(*options.agreement, Vote::Yes);  // before others would wait in a step for one that has none
  const auto record = [&](const RecordOptions& how) {
    RecordedStep step = record_step_within(limit, forward, memory, how);
    or_tell(*how.agreement, [&] { check_all_have_budgets(step.parameters, how.other_budgets, memory.device()); });
    return step;
  };
  std::vector<RecordedStep> kinds;
  if (count == 1) {
    kinds.push_back(record(options));
    return each_a_kind(std::move(kinds));
  }
  RecordOptions of_first = options, of_later = options;
  of_first.update = {};
  of_first.update.parameters = options.update.parameters;
  RecordedStep first = record(of_first);
  if (first.kind == StepKind::MicroBatch) {  // which know of their gradients
    kinds.push_back(record(options));
    return each_a_kind(std::move(kinds));
  }
  of_later.have_gradients = first.with_gradients;
  kinds.push_back(record(of_later));
  if (options.update.each && count > 2) {  // those in between update nothing
    RecordOptions of_middle = of_first;
    of_middle.have_gradients = first.with_gradients;
    kinds.push_back(record(of_middle));
  }
  kinds.push_back(std::move(first));
  return kinds;
}

Session fit(const Forward& forward, FitOptions options, std::optional<c10::Device> device_of_sample) {
  memory::DeviceMemory& memory = or_tell(
      *options.agreement, [&]() -> auto& { return checked(options, device_of_sample); });
  const auto tiers = or_tell(*options.agreement, [&] { return tiers_of(options); });
  const WindowAfterFailure as_before(options.streamed.get());
  options.other_budgets = with_indices(std::move(options.other_budgets));
  std::vector<RecordedStep> kinds =
      record_micro_batches(options.micro_batches, options.budget, forward, memory,
                           {.update = options.optimizer ? options.optimizer : options.update,
                            .agreement = options.agreement,
                            .other_budgets = options.other_budgets,
                            .streamed = options.streamed,
                            .lossy = options.lossy});
  or_tell(*options.agreement, [&] { let_move(kinds, memory, *tiers, options.budget); });
  agree_on(kinds, *options.agreement);
  const plan::Budget budget = plan::Budget::for_limit(options.budget);
  std::vector<PlannedStep> steps = or_tell(*options.agreement, [&] {
    std::vector<PlannedStep> all = planned(std::move(kinds), options.strategy, *options.agreement);
    open_best_window(options.streamed.get(), all, budgets_of(budget, options.other_budgets), memory,
                     options.micro_batches, *options.agreement);
    return all;
  });
  Session session(std::move(steps), budget, memory, options.agreement, std::move(options.other_budgets));
  session.use(tiers);
  if (options.arena) session.use_arena();
  if (!options.check) session.verify_replays(VerifyReplay::Off);
  if (options.streamed) session.use(options.streamed);
  return session;
}

}  // namespace snug::replay

namespace snug {

Session fit(const FitOptions& options) {
  FitOptions checked_options = options;
  memory::DeviceMemory& memory = replay::or_tell(
      *options.agreement, [&]() -> auto& {
        const char* needs = options.optimizer || options.update          ? "an optimizer or update to rehearse"
                            : options.micro_batches != 1                 ? "several micro-batches"
                            : options.host_budget || options.disk_budget ? "a budget of the host or a disk"
                            : options.streamed                           ? "streamed tensors"
                            : options.lossy != plan::Codec::None         ? "a lossy codec"
                                                                         : nullptr;
        if (needs != nullptr) {
          throw UsageError(fmt::format(
              "fit: without a sample nothing is recorded in advance, which {} needs; give a sample", needs));
        }
        return replay::checked(checked_options, std::nullopt);
      });
  Session session = Session::without_sample(options.strategy, plan::Budget::for_limit(options.budget), memory,
                                            options.agreement, options.other_budgets);
  if (options.arena) session.use_arena();
  if (!options.check) session.verify_replays(VerifyReplay::Off);
  return session;
}

}  // namespace snug
