#include "snug/train/training_step.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/optim/optimizer.h"
#include "snug/record/random_state.h"
#include "snug/replay/anomaly.h"
#include "snug/replay/fit.h"
#include "snug/replay/moves.h"
#include "snug/train/interrupt.h"

namespace snug::train {
namespace {

/// Those of this process.
std::vector<MicroBatch> micros_of(const Experiment& experiment, const data::Batch& batch) {
  return experiment.team().part_of(batch, experiment.config().train.accumulate);
}

constexpr const char* kHowToFind = "train.detect_anomaly = true names the operator that made it";

[[noreturn]] void refuse_loss(Experiment& experiment, const data::Batch& batch, std::int64_t step, double loss,
                              const record::RandomState& random) {
  std::string cause = kHowToFind;
  if (experiment.config().train.detect_anomaly) {
    const record::RandomStateScope as_then(random);
    std::optional<std::string> found;
    for (const MicroBatch& micro : micros_of(experiment, batch)) {
      if (!found) found = replay::first_non_finite([&] { return experiment.loss(micro.batch); });
    }
    cause = found ? "the first operator with a non-finite output is " + *found
                  : "running the step again gave finite values";
  }
  throw Error(fmt::format("train: the loss of step {} is {}; {}; a lower optimizer.learning_rate often helps", step,
                          loss, cause));
}

/// The weights are still those that the step began with.
[[noreturn]] void refuse_gradients(Experiment& experiment, Session& session, const std::function<void()>& again,
                                   std::int64_t step, double norm, const record::RandomState& random) {
  std::string cause = kHowToFind;
  if (experiment.config().train.detect_anomaly) {
    cause = "running the step again gave finite gradients";
    experiment.optimizer().zero_grad();
    session.anomalies(Anomalies::Refused);
    const record::RandomStateScope as_then(random);
    try {
      again();
    } catch (const Error& error) {
      cause = error.what();
    }
  }
  throw Error(
      fmt::format("train: the norm of the gradients of step {} is {}; {}; a lower optimizer.learning_rate often "
                  "helps",
                  step, norm, cause));
}

/// Before the backward pass.
class NonFiniteLoss : public Error {
 public:
  explicit NonFiniteLoss(double found) : Error(fmt::format("train: the loss is {}", found)), loss(found) {}
  double loss;
};

replay::RecordedStep record_within(std::optional<Bytes> limit, const Experiment& experiment,
                                   const replay::Forward& forward, replay::RecordOptions options) {
  options.stop = interrupted;
  options.agreement = experiment.team().agreement();
  return replay::record_step_within(limit, forward, experiment.memory(), options);
}

}  // namespace

at::Tensor run_plain(const replay::Forward& forward) {
  const at::Tensor loss = forward();
  loss.backward();
  return loss.detach();
}

TrainingStep::TrainingStep(Experiment& experiment) : experiment_(experiment) {
  if (experiment.config().optimizer.in_backward) in_backward_.emplace(experiment);
  together_ = experiment.team().data_parallel(experiment.optimizer().parameters(), experiment.config());
}

std::vector<replay::RecordedStep> TrainingStep::record(const data::Batch& sample, std::optional<Bytes> limit) {
  std::vector<replay::RecordedStep> kinds = record_kinds(sample, limit);
  replay::let_move(kinds, experiment_.memory(), *experiment_.tiers());
  return kinds;
}

std::vector<replay::RecordedStep> TrainingStep::record_kinds(const data::Batch& sample, std::optional<Bytes> limit) {
  const at::Tensor sum = at::zeros({}, experiment_.device());  // of losses, which is there beside later micro-batches
  const std::vector<MicroBatch> micros = micros_of(experiment_, sample);
  const auto recorded = [&](std::size_t i, replay::RecordOptions options) {
    options.streamed = experiment_.streamed();
    options.lossy = codec_of(experiment_.config().memory.activations);
    return record_within(
        limit, experiment_, [&] { return weighted_loss(micros[i]); }, std::move(options));
  };
  std::vector<replay::RecordedStep> kinds;
  if (micros.size() == 1) {
    kinds.push_back(recorded(0, {.update = rehearsal()}));
    return kinds;
  }
  std::optional<parallel::DataParallel::Accumulating> not_the_last;
  if (together_) not_the_last.emplace(*together_);
  replay::RecordedStep first = recorded(0, {});
  not_the_last.reset();
  kinds.push_back(recorded(1, {.update = rehearsal(), .have_gradients = first.parameters}));
  // Those in between update nothing, and keep their gradients.
  if (in_backward_ && micros.size() > 2) kinds.push_back(recorded(1, {.have_gradients = first.parameters}));
  kinds.push_back(std::move(first));
  return kinds;
}

std::vector<replay::RecordedStep> TrainingStep::record_all(const data::Batch& sample, std::optional<Bytes> limit) {
  std::vector<replay::RecordedStep> kinds = record(sample, limit);
  if (const std::optional<data::Batch> validation = experiment_.validation_sample()) {
    kinds.push_back(record_within(limit, experiment_, [&] { return experiment_.evaluate(*validation); },
                                  {.until = replay::RecordUntil::Loss, .streamed = experiment_.streamed()}));
  }
  return kinds;
}

at::Tensor TrainingStep::weighted_loss(const MicroBatch& micro) {
  const at::Tensor loss = experiment_.loss(micro.batch);
  // Later the weights would have been updated with what comes of it.
  if (const double now = in_backward_ ? loss.item<double>() : 0; !std::isfinite(now)) throw NonFiniteLoss(now);
  const optim::GradScaler& scaler = experiment_.scaler();
  if (experiment_.config().train.accumulate == 1 && experiment_.team().size() == 1) return scaler.scale(loss);
  // A tensor and not a number: another share is no other operator.
  return loss * at::full({}, micro.share * scaler.get_scale(), loss.options().requires_grad(false));
}

template <class Run>
at::Tensor TrainingStep::sum_of_losses(const data::Batch& batch, std::int64_t update, const Run& run) {
  at::Tensor sum;
  const std::vector<MicroBatch> micros = micros_of(experiment_, batch);
  for (const MicroBatch& micro : micros) {
    std::optional<replay::GradientHooks> updates;
    if (in_backward_ && &micro == &micros.back()) in_backward_->begin(update, updates);
    std::optional<parallel::DataParallel::Accumulating> not_the_last;
    if (together_ && &micro != &micros.back()) not_the_last.emplace(*together_);
    const at::Tensor loss = run([&] {
      at::Tensor weighted = weighted_loss(micro);
      whole_ = !updates;  // from the backward pass on
      return weighted;
    });
    whole_ = true;
    sum = sum.defined() ? sum + loss : loss;
  }
  return sum;
}

at::Tensor TrainingStep::unscaled(const at::Tensor& loss) const {
  const double scale = experiment_.scaler().get_scale();
  return scale == 1 ? loss : loss / scale;
}

at::Tensor TrainingStep::backward(Session& session, const data::Batch& batch, std::int64_t update) {
  return unscaled(scaled_backward(session, batch, update));
}

at::Tensor TrainingStep::scaled_backward(Session& session, const data::Batch& batch, std::int64_t update) {
  last_ = {};
  return sum_of_losses(batch, update, [&](const replay::Forward& forward) {
    at::Tensor loss = session.backward(forward);
    const Session::StepReport& report = session.last_step();
    last_.replayed_ops += report.replayed_ops;
    last_.evictions += report.evictions;
    last_.lossy_bytes += report.lossy_bytes;
    if (!report.followed_plan && last_.divergence.empty()) last_.divergence = report.divergence;
    return loss;
  });
}

at::Tensor TrainingStep::backward_plain(const data::Batch& batch, std::int64_t update) {
  return unscaled(sum_of_losses(batch, update, [](const replay::Forward& forward) { return run_plain(forward); }));
}

TrainingStep::Gradients TrainingStep::gathered(const at::Tensor& loss) {
  Gradients made;
  if (!together_) {
    made.loss = unscaled(loss).item<double>();
    return made;
  }
  const at::Tensor state = record::save_random_state(experiment_.generator()).state;
  const Team::Word mine{
      .loss = loss.item<double>(),
      .stops = interrupted(),
      .random = {reinterpret_cast<const char*>(state.const_data_ptr()), static_cast<std::size_t>(state.numel())}};
  at::Tensor sum;  // in the loss's type and order, as one process adds up
  for (const Team::Word& word : experiment_.team().tell(mine)) {
    const at::Tensor one = at::full({}, word.loss, loss.options().device(at::kCPU));
    sum = sum.defined() ? sum + one : one;
    made.stops |= word.stops;
    made.random.push_back(word.random);
  }
  made.loss = unscaled(sum).item<double>();
  return made;
}

TrainingStep::Gradients TrainingStep::make_gradients(Session& session, const data::Batch& batch, std::int64_t step,
                                                     std::int64_t update) {
  const record::RandomState random = record::save_random_state(experiment_.generator());
  try {
    Gradients made = gathered(scaled_backward(session, batch, update));
    made.norm = clip();
    made.overflowed = overflowed();
    if (made.overflowed) return made;
    if (!std::isfinite(made.loss)) refuse_loss(experiment_, batch, step, made.loss, random);
    if (!std::isfinite(made.norm)) {
      refuse_gradients(
          experiment_, session,
          [&] {
            // Each process by itself: the first that finds something goes no further.
            std::optional<parallel::DataParallel::Accumulating> alone;
            if (together_) alone.emplace(*together_);
            backward(session, batch, update);
          },
          step, made.norm, random);
    }
    return made;
  } catch (const NonFiniteLoss& found) {
    record::restore(random);
    refuse_loss(experiment_, batch, step, found.loss, random);
  } catch (...) {
    record::restore(random);
    if (optim::GradScaler& scaler = experiment_.scaler(); scaler.options().enabled) {
      scaler.update(scaler.get_scale());  // what has been unscaled is forgotten
      forget_gradients();
    }
    throw;
  }
}

double TrainingStep::clip() {
  if (in_backward_) return in_backward_->norm();
  optim::Optimizer& optimizer = experiment_.optimizer();
  if (experiment_.scaler().options().enabled) experiment_.scaler().unscale(optimizer);
  return overflowed() ? std::numeric_limits<double>::quiet_NaN()
                      : optim::clip_gradients(optimizer.parameters(), experiment_.clipping());
}

bool TrainingStep::overflowed() const { return experiment_.scaler().overflowed(&experiment_.optimizer()); }

void TrainingStep::update(std::int64_t update) {
  if (in_backward_) return forget_gradients();  // of weights that took no part
  optim::Optimizer& optimizer = experiment_.optimizer();
  experiment_.scaler().step(optimizer, [&] { optimizer.step(experiment_.learning_rate(update)); });
  experiment_.scaler().update();
  forget_gradients();
}

void TrainingStep::forget_gradients() { experiment_.optimizer().zero_grad(); }

replay::Rehearsal TrainingStep::rehearsal() {
  if (in_backward_) {
    replay::Rehearsal each;
    each.each = [this](const at::Tensor& parameter) { in_backward_->rehearse(parameter); };
    each.writes = replay::Rehearsal::Writes::Nothing;
    return each;
  }
  replay::Rehearsal rehearsal([this] {
    optim::clip_gradients(experiment_.optimizer().parameters(), experiment_.clipping());
    experiment_.optimizer().rehearse();
  });
  rehearsal.writes = replay::Rehearsal::Writes::Nothing;
  return rehearsal;
}

}  // namespace snug::train
