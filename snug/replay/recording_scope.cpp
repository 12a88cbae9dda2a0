#include "snug/replay/recording_scope.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"
#include "snug/record/recording_key.h"
#include "snug/replay/stop_asked.h"
#include "snug/replay/streamed_tensors.h"

namespace snug::replay {

std::vector<Bytes> allocated_on(const std::vector<memory::DeviceMemory*>& devices) {
  std::vector<Bytes> all;
  for (const memory::DeviceMemory* device : devices) all.push_back(device->stats().allocated);
  return all;
}

std::vector<Bytes> more_than(const std::vector<Bytes>& before, const std::vector<memory::DeviceMemory*>& devices) {
  std::vector<Bytes> more = allocated_on(devices);
  for (std::size_t i = 0; i < more.size(); ++i) more[i] -= before[i];
  return more;
}

void tag_weights(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& p : parameters) {
    if (p.has_storage()) memory::retag(p.storage(), memory::Tag::Weights);
  }
}

namespace {

/// Weights that are gathered again for their backward pass, as those of fully_shard (FSDP2), are known to the tape.
/// Others may be there, or not, when a replay asks for them.
void refuse_freed_weights(const record::Tape& tape) {
  const auto freed = tape.resized_leaf();
  if (!freed) return;
  throw UsageError(fmt::format(
      "step: {} has been freed since an operator read it, as FullyShardedDataParallel (FSDP1) does, and a plan could "
      "not make it again; use fully_shard (FSDP2), or DistributedDataParallel",
      tape.lookup().name_of(*freed)));
}

}  // namespace

RecordingScope::RecordingScope(EvictionCost cost, memory::DeviceMemory& memory, const RecordOptions& options)
    : options_(options),
      cost_(cost),
      devices_(memories_of(memory, options.other_budgets)),
      before_(allocated_on(devices_)),
      aside_(options.update.parameters),
      not_of_steps_(more_than(before_, devices_)),
      other_limits_(options.other_budgets),
      awaited_(memory) {
  const std::vector<at::Tensor>& with = options.have_gradients;
  tag_weights(options.update.parameters);
  aside_.put(options.leaves);
  aside_.put(with);

  const std::vector<Bytes> without = allocated_on(devices_);
  const memory::TagScope tag(memory::Tag::Gradients);
  for (const at::Tensor& p : with) {
    const c10::impl::ExcludeDispatchKeyGuard no_state_of_an_optimizer(record::kRecordingKey);
    p.mutable_grad() = at::zeros_like(p);
    if (options.streamed) options.streamed->take_gradient(p);
  }
  gradients_ = more_than(without, devices_);
}

RecordingScope::~RecordingScope() {
  writes_.use(nullptr);
  for (const auto& pass : passes_) pass->tape->detach();
}

RecordedPass& RecordingScope::begin_pass(record::Policy policy) {
  auto pass = std::make_unique<RecordedPass>();
  pass->profiler = std::make_shared<record::Profiler>(record::gauges_of(devices_, not_of_steps_), options_.lossy);
  pass->tape = std::make_shared<record::Tape>(std::move(policy), pass->profiler);
  if (options_.stop) pass->tape->add_observer(std::make_shared<StopAsked>(options_.stop));
  pass->evictors = std::make_unique<TapeEvictors>(pass->tape, *devices_.front(), options_.other_budgets, cost_);
  writes_.use(&pass->profiler->clock());
  passes_.push_back(std::move(pass));
  return *passes_.back();
}

RecordedPass& RecordingScope::begin_micro_batch() {
  RecordedPass& pass = begin_pass();
  pass.profiler->take_turns(turns_);
  pass.is_micro_batch = true;
  return pass;
}

RecordedPass& RecordingScope::pass_of(const record::Tape& tape) {
  return **std::ranges::find_if(passes_, [&](const auto& pass) { return pass->tape.get() == &tape; });
}

void RecordingScope::end_pass(const record::Tape& tape) {
  const auto found = std::ranges::find_if(passes_, [&](const auto& pass) { return pass->tape.get() == &tape; });
  (*found)->tape->detach();
  passes_.erase(found);
  writes_.use(passes_.empty() ? nullptr : &passes_.back()->profiler->clock());
}

void RecordingScope::finish_forward(RecordedPass& pass) {
  refuse_freed_weights(*pass.tape);
  pass.tape->finish();
}

void RecordingScope::update_each(const Rehearsal& rehearsal, const std::vector<at::Tensor>& parameters) {
  in_backward_.emplace(parameters, [this, &rehearsal](const at::Tensor& parameter) {
    std::optional<UndoneWrites::Pause> trusted;
    if (rehearsal.writes == Rehearsal::Writes::Nothing) trusted.emplace(writes_);
    rehearsal.each(parameter);
  });
}

void RecordingScope::take_gradients(const std::vector<at::Tensor>& parameters) {
  in_backward_.emplace(
      parameters, [this](const at::Tensor& parameter) { options_.streamed->take_gradient(parameter); },
      GradientHooks::For::Else);
}

}  // namespace snug::replay
