#include "snug/train/training_step.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/optim/optimizer.h"
#include "snug/record/random_state.h"
#include "snug/replay/anomaly.h"
#include "snug/replay/fit.h"

namespace snug::train {
namespace {

constexpr const char* kHowToFind = "train.detect_anomaly = true names the operator that made it";

record::RandomState random_state() {
  return record::save_random_state(record::default_generator(c10::Device(c10::kCPU)));
}

[[noreturn]] void refuse_loss(Experiment& experiment, const data::Batch& batch, std::int64_t step, double loss,
                              const record::RandomState& random) {
  std::string cause = kHowToFind;
  if (experiment.config().train.detect_anomaly) {
    const record::RandomStateScope as_then(random);
    const auto found = replay::first_non_finite([&] { return experiment.loss(batch); });
    cause = found ? "the first operator with a non-finite output is " + *found
                  : "running the step again gave finite values";
  }
  throw Error(fmt::format("train: the loss of step {} is {}; {}; a lower optimizer.learning_rate often helps", step,
                          loss, cause));
}

/// The weights are still those that the step began with.
[[noreturn]] void refuse_gradients(Experiment& experiment, Session& session, const data::Batch& batch,
                                   std::int64_t step, double norm, const record::RandomState& random) {
  std::string cause = kHowToFind;
  if (experiment.config().train.detect_anomaly) {
    cause = "running the step again gave finite gradients";
    experiment.optimizer().zero_grad();
    session.anomalies(Anomalies::Refused);
    const record::RandomStateScope as_then(random);
    try {
      session.backward([&] { return experiment.loss(batch); });
    } catch (const Error& error) {
      cause = error.what();
    }
  }
  throw Error(
      fmt::format("train: the norm of the gradients of step {} is {}; {}; a lower optimizer.learning_rate often "
                  "helps",
                  step, norm, cause));
}

replay::RecordedStep record_within(std::optional<Bytes> limit, const replay::Forward& forward,
                                   const replay::RecordOptions& options) {
  auto& memory = memory::device_memory(c10::kCPU);
  return limit ? replay::record_step_within(*limit, forward, memory, options)
               : replay::record_step(forward, memory, options);
}

}  // namespace

at::Tensor run_plain(const replay::Forward& forward) {
  const at::Tensor loss = forward();
  loss.backward();
  return loss.detach();
}

replay::RecordedStep TrainingStep::record(const data::Batch& sample, std::optional<Bytes> limit) {
  return record_within(limit, [&] { return experiment_.loss(sample); }, {.update = rehearsal()});
}

std::vector<replay::RecordedStep> TrainingStep::record_all(const data::Batch& sample, std::optional<Bytes> limit) {
  std::vector<replay::RecordedStep> kinds;
  kinds.push_back(record(sample, limit));
  if (const std::optional<data::Batch> validation = experiment_.validation_sample()) {
    kinds.push_back(
        record_within(limit, [&] { return experiment_.evaluate(*validation); }, {.until = replay::RecordUntil::Loss}));
  }
  return kinds;
}

at::Tensor TrainingStep::backward(Session& session, const data::Batch& batch) {
  return session.backward([&] { return experiment_.loss(batch); });
}

at::Tensor TrainingStep::backward_plain(const data::Batch& batch) {
  return run_plain([&] { return experiment_.loss(batch); });
}

TrainingStep::Gradients TrainingStep::make_gradients(Session& session, const data::Batch& batch, std::int64_t step) {
  const record::RandomState random = random_state();
  try {
    Gradients made;
    made.loss = backward(session, batch).item<double>();
    if (!std::isfinite(made.loss)) refuse_loss(experiment_, batch, step, made.loss, random);
    made.norm = clip();
    if (!std::isfinite(made.norm)) refuse_gradients(experiment_, session, batch, step, made.norm, random);
    return made;
  } catch (...) {
    record::restore(random);
    throw;
  }
}

double TrainingStep::clip() {
  return optim::clip_gradient_norm(experiment_.optimizer().parameters(), experiment_.config().optimizer.clip_norm);
}

void TrainingStep::update(std::int64_t step) {
  experiment_.optimizer().step(experiment_.learning_rate(step));
  forget_gradients();
}

void TrainingStep::forget_gradients() { experiment_.optimizer().zero_grad(); }

replay::Rehearsal TrainingStep::rehearsal() {
  replay::Rehearsal rehearsal([this] {
    clip();
    experiment_.optimizer().rehearse();
  });
  rehearsal.writes = replay::Rehearsal::Writes::Nothing;
  return rehearsal;
}

}  // namespace snug::train
