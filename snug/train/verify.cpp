#include "snug/train/verify.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "snug/memory/device_clock.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/owned_contents.h"
#include "snug/record/random_state.h"
#include "snug/train/choose.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/train_result.h"
#include "snug/train/training_step.h"

namespace snug::train {
namespace {

/// On an accelerator LibTorch's fastest kernels differ from themselves from run to run, such as attention's backward
/// pass on CUDA. As long as this lives it takes others, and warns of operators that have none.
class DeterministicAlgorithms {
 public:
  explicit DeterministicAlgorithms(c10::Device device)
      : before_(context().deterministicAlgorithms()), warned_only_(context().deterministicAlgorithmsWarnOnly()) {
    if (device.is_cpu() || before_) return;
    // Read by cuBLAS when it is first used: a workspace for each stream, always of that size.
    if (device.is_cuda()) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    context().setDeterministicAlgorithms(true, /*warn_only=*/true);
    context().setDeterministicFillUninitializedMemory(false);  // which takes time, and decides nothing
  }
  ~DeterministicAlgorithms() {
    context().setDeterministicAlgorithms(before_, warned_only_);
    context().setDeterministicFillUninitializedMemory(fills_);
  }
  DeterministicAlgorithms(const DeterministicAlgorithms&) = delete;
  DeterministicAlgorithms& operator=(const DeterministicAlgorithms&) = delete;

 private:
  static at::Context& context() { return at::globalContext(); }
  bool before_, warned_only_, fills_ = context().deterministicFillUninitializedMemory();
};

/// Copies of tensors outside of the allocator that the budget counts.
class Copies {
 public:
  void add(std::string name, const at::Tensor& tensor) {
    const at::Tensor whole = tensor.detach().cpu().contiguous();
    const memory::ContentsThere there(whole.storage());
    const auto* bytes = static_cast<const char*>(whole.data_ptr());
    entries_.push_back({std::move(name), whole.scalar_type(), {bytes, bytes + whole.nbytes()}});
  }
  struct Entry {
    std::string name;
    c10::ScalarType dtype;
    std::vector<char> bytes;
  };
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  template <class Is>
  void erase_if(const Is& is) {
    std::erase_if(entries_, [&](const Entry& entry) { return is(entry.name); });
  }

 private:
  std::vector<Entry> entries_;
};

constexpr std::string_view kGradient = "gradient of ", kWeight = "weight ";

at::Tensor tensor_of(const Copies::Entry& e) {
  const auto count = static_cast<std::int64_t>(e.bytes.size() / c10::elementSize(e.dtype));
  return at::from_blob(const_cast<char*>(e.bytes.data()), {count}, e.dtype);
}

double largest_difference(const Copies::Entry& a, const Copies::Entry& b) {
  if (a.bytes.size() != b.bytes.size() || a.bytes.empty()) return 0;
  return (tensor_of(a).to(at::kDouble) - tensor_of(b).to(at::kDouble)).abs().max().item<double>();
}

/// Of what is not exact where a codec is lossy.
void measure_gradients(const Copies& exact, const Copies& found, GradientErrors& errors) {
  const std::size_t count = std::min(exact.entries().size(), found.entries().size());
  for (std::size_t i = 0; i < count; ++i) {
    const Copies::Entry &a = exact.entries()[i], &b = found.entries()[i];
    if (a.name == b.name && a.bytes.size() == b.bytes.size() && a.name.starts_with(kGradient))
      errors.add(a.name.substr(kGradient.size()), tensor_of(a), tensor_of(b));
  }
}

/// Everything a step changes, so that it can be run a second time.
class State {
 public:
  explicit State(Experiment& experiment)
      : scaler_(experiment.scaler()),
        scale_(scaler_.state_dict()),
        random_(record::save_random_state(experiment.generator())) {
    for (const at::Tensor& t : experiment.model().parameters()) tensors_.push_back(t);
    for (const at::Tensor& t : experiment.model().buffers()) tensors_.push_back(t);
    for (const at::Tensor& t : experiment.optimizer().state()) tensors_.push_back(t);
    for (const at::Tensor& t : tensors_) copies_.add("", t);
  }
  void restore() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Copies::Entry& e = copies_.entries()[i];
      tensors_[i].copy_(at::from_blob(const_cast<char*>(e.bytes.data()), tensors_[i].sizes(), e.dtype));
    }
    if (!scale_.empty()) scaler_.load_state_dict(scale_);
    record::restore(random_);
  }

 private:
  optim::GradScaler& scaler_;
  nlohmann::json scale_;
  std::vector<at::Tensor> tensors_;
  Copies copies_;
  record::RandomState random_;
};

/// What a step leaves behind: before the update, and the weights after it.
Copies outcome(Experiment& experiment, TrainingStep& training, const at::Tensor& loss, std::int64_t step) {
  Copies copies;
  copies.add("loss", loss);
  for (const auto& p : experiment.model().named_parameters()) {
    if (p.value().grad().defined()) copies.add(std::string(kGradient) + p.key(), p.value().grad());
  }
  for (const auto& b : experiment.model().named_buffers()) copies.add("buffer " + b.key(), b.value());
  copies.add("random state", record::save_random_state(experiment.generator()).state);
  training.clip();
  training.update(step);
  for (const auto& p : experiment.model().named_parameters()) copies.add(std::string(kWeight) + p.key(), p.value());
  return copies;
}

/// Streamed weights are in the device's memory meanwhile, as a plain step has them.
template <class Plain>
void with_all_there(Experiment& experiment, const Plain& plain) {
  StreamedTensors* const streamed = experiment.streamed().get();
  if (streamed == nullptr || !streamed->window()) return plain();
  const plan::Window window = streamed->window()->window();
  streamed->bring_back();
  plain();
  experiment.stream_again();
  streamed->open(window);
}

/// What no plan may change, lossy or not: neither gradients, nor weights that have been updated with them.
Copies but_for_gradients(Copies copies) {
  copies.erase_if([](const std::string& name) { return name.starts_with(kGradient) || name.starts_with(kWeight); });
  return copies;
}

void compare(const Copies& plain, const Copies& planned, std::int64_t step, VerifyResult& result) {
  const std::size_t count = std::max(plain.entries().size(), planned.entries().size());
  for (std::size_t i = 0; i < count; ++i) {
    ++result.tensors;
    const bool both = i < plain.entries().size() && i < planned.entries().size();
    if (both && plain.entries()[i].name == planned.entries()[i].name &&
        plain.entries()[i].bytes == planned.entries()[i].bytes)
      continue;
    ++result.different;
    if (result.first_different.empty()) {
      result.first_different =
          fmt::format("step {}: {}", step + 1, both ? plain.entries()[i].name : "a tensor that only one of them has");
    }
    if (both)
      result.max_abs_difference =
          std::max(result.max_abs_difference, largest_difference(plain.entries()[i], planned.entries()[i]));
  }
}

}  // namespace

nlohmann::ordered_json to_json(const VerifyResult& r) {
  nlohmann::ordered_json json = {
      {"steps", r.steps},
      {"steps_compared", r.compared},
      {"tensors", r.tensors},
      {"different", r.different},
      {"max_abs_difference", r.max_abs_difference},
      {"first_different",
       r.first_different.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(r.first_different)},
      {"lossy_bytes", r.lossy},
      {"replayed_ops", r.replayed_ops},
      {"evictions", r.evictions},
      {"plain_step_seconds_median", r.plain_seconds_median},
      {"planned_step_seconds_median", r.planned_seconds_median}};
  if (!r.gradient_error.empty()) {
    json["gradient_error"] = r.gradient_error_of_all;
    for (const GradientError& error : r.gradient_error) json["gradient_error_by_layer"][error.layer] = error.relative;
  }
  json.update(plan_figures(r.plan, {r.predicted_peak, r.plan.unplanned_peak}, r.memory));
  return json;
}

namespace {

VerifyResult verify_chosen(const Config& config, std::int64_t steps, std::int64_t every, report::Progress& progress) {
  VerifyResult result;
  Experiment experiment(config);
  auto& memory = experiment.memory();
  progress.note("recording one step");
  TrainingStep training(experiment);
  Session session = plan_session(experiment, Kinds::Training);
  const std::optional<Bytes> limit = memory.stats().limit;
  std::vector<double> plain_seconds, planned_seconds;
  GradientErrors errors;
  for (std::int64_t step = 0; step < steps && !interrupted(); ++step) {
    const data::Batch batch = experiment.train_batch(step);
    if (step % every != 0) {
      training.backward(session, batch, step);
      if (memory.stats().allocated_peak > result.memory.allocated_peak) result.memory = memory.stats();
      training.clip();
      training.update(step);
      result.replayed_ops += training.last().replayed_ops;
      result.evictions += training.last().evictions;
      result.steps = step + 1;
      continue;
    }
    State before(experiment);
    Copies plain;
    {
      memory.set_limit(std::nullopt);
      with_all_there(experiment, [&] {
        const double started = memory::seconds_when_done(memory.device());
        const at::Tensor loss = training.backward_plain(batch, step);
        plain_seconds.push_back(memory::seconds_when_done(memory.device()) - started);
        plain = outcome(experiment, training, loss, step);
      });
    }
    before.restore();
    // The plain step's cached pages would count against the cap.
    memory.release_cached();
    memory.set_limit(limit);
    const memory::Stats peaks = result.memory;
    memory.reset_peak();
    const double started = memory::seconds_when_done(memory.device());
    const at::Tensor loss = training.backward(session, batch, step);
    planned_seconds.push_back(memory::seconds_when_done(memory.device()) - started);
    result.memory = memory.stats();
    if (peaks.allocated_peak > result.memory.allocated_peak) result.memory = peaks;
    result.replayed_ops += training.last().replayed_ops;
    result.evictions += training.last().evictions;
    const Bytes lossy = training.last().lossy_bytes;
    const Copies planned = outcome(experiment, training, loss, step);
    if (lossy == 0) {
      compare(plain, planned, step, result);
    } else {
      result.lossy = std::max(result.lossy, lossy);
      measure_gradients(plain, planned, errors);
      compare(but_for_gradients(std::move(plain)), but_for_gradients(planned), step, result);
      before.restore();
      session.follow(Follow::LossyAlone);
      const at::Tensor loss_alone = training.backward(session, batch, step);
      memory.release_cached();  // what it took without a limit
      compare(outcome(experiment, training, loss_alone, step), planned, step, result);
      session.follow(Follow::All);
    }
    result.steps = step + 1;
    ++result.compared;
    progress.note(fmt::format("step {}: loss {:.4f}, {} tensors compared, {} differ", step + 1, loss.item<double>(),
                              result.tensors, result.different));
  }
  result.gradient_error = errors.by_layer();
  result.gradient_error_of_all = errors.all().relative;
  result.plan = session.plan();
  result.predicted_peak = session.predicted_peak();
  result.plain_seconds_median = median(plain_seconds);
  result.planned_seconds_median = median(planned_seconds);
  return result;
}

}  // namespace

VerifyResult verify(const Config& config, std::int64_t steps, std::int64_t every, report::Progress& progress) {
  const DeterministicAlgorithms deterministic(memory::device_named(config.train.device));
  warm_up(config);
  const Config chosen = choose(config, progress).config;
  try {
    return verify_chosen(chosen, steps, every, progress);
  } catch (const DoesNotFit& refusal) {
    throw with_cheapest_change(refusal, chosen, progress);
  }
}

}  // namespace snug::train
