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
#include "snug/replay/agreement.h"
#include "snug/replay/anomaly.h"
#include "snug/replay/fit.h"
#include "snug/replay/moves.h"
#include "snug/replay/planned_step.h"
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
    const std::vector<MicroBatch> micros = micros_of(experiment, batch);
    if (experiment.is_in_stages()) {  // of which each process looks at its own
      found = replay::first_non_finite([&] {
        const std::vector<at::Tensor> losses = experiment.evaluate_in_stages(micros);
        return losses.empty() ? at::zeros({}) : losses.front();
      });
    }
    for (const MicroBatch& micro : micros) {
      if (!found && !experiment.is_in_stages())
        found = replay::first_non_finite([&] { return experiment.loss(micro.batch); });
    }
    for (const std::string& one : experiment.team().gather_texts(found.value_or(""))) {
      if (!found && !one.empty()) found = one;
    }
    cause = found ? "the first operator with a non-finite output is " + *found
                  : "running the step again gave finite values";
  }
  throw FailedInAll(fmt::format("train: the loss of step {} is {}; {}; a lower optimizer.learning_rate often helps",
                                step + 1, loss, cause));
}

/// The weights are still those that the step began with.
[[noreturn]] void refuse_gradients(Experiment& experiment, Session& session, const std::function<void()>& again,
                                   std::int64_t step, double norm, const record::RandomState& random) {
  std::string cause = kHowToFind;
  if (experiment.team().layout().per_replica() > 1) {
    // One that finds something would leave the others waiting.
    cause = "train.detect_anomaly = true names the operator that made it where each process has the whole model";
  } else if (experiment.config().train.detect_anomaly) {
    cause = "running the step again gave finite gradients";
    experiment.optimizer().zero_grad();
    session.anomalies(Anomalies::Refused);
    const record::RandomStateScope as_then(random);
    try {
      again();
    } catch (const replay::GroupEnded&) {
      throw;  // another process has gone another way
    } catch (const Error& error) {
      cause = error.what();
    }
  }
  throw FailedInAll(
      fmt::format("train: the norm of the gradients of step {} is {}; {}; a lower optimizer.learning_rate often "
                  "helps",
                  step + 1, norm, cause));
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
  at::Tensor loss = forward();
  if (!loss.defined()) return loss;  // which has gone backward
  loss.backward();
  return loss.detach();
}

TrainingStep::TrainingStep(Experiment& experiment) : experiment_(experiment), together_(experiment.together()) {
  if (experiment.config().optimizer.in_backward) in_backward_.emplace(experiment);
}

std::unique_ptr<TeamGradients::Accumulating> TrainingStep::not_the_last() const {
  const ShardOf shard = experiment_.config().parallel.shard;
  if (together_ == nullptr || shard == ShardOf::Gradients || shard == ShardOf::Parameters) return nullptr;
  return std::make_unique<TeamGradients::Accumulating>(*together_);
}

std::vector<replay::RecordedStep> TrainingStep::record(const data::Batch& sample, std::optional<Bytes> limit) {
  std::vector<replay::RecordedStep> kinds = record_kinds(sample, limit);
  replay::let_move(kinds, experiment_.memory(), *experiment_.tiers(), limit);
  return kinds;
}

std::vector<replay::RecordedStep> TrainingStep::record_kinds(const data::Batch& sample, std::optional<Bytes> limit) {
  const std::vector<MicroBatch> micros = micros_of(experiment_, sample);
  // Of losses, beside later micro-batches.
  const at::Tensor sum = micros.size() > 1 ? at::zeros({}, experiment_.device()) : at::Tensor();
  const auto recorded_of = [&](const replay::Forward& forward, replay::RecordOptions options) {
    options.streamed = experiment_.streamed();
    options.lossy = codec_of(experiment_.config().memory.activations);
    return record_within(limit, experiment_, forward, std::move(options));
  };
  const auto recorded = [&](std::size_t i, replay::RecordOptions options) {
    return recorded_of([&] { return weighted_loss(micros[i]); }, std::move(options));
  };
  std::vector<replay::RecordedStep> kinds;
  if (experiment_.is_in_stages()) {
    std::vector<at::Tensor> losses;
    kinds.push_back(recorded_of(through_stages(micros, losses), {.update = rehearsal()}));
    return replay::each_a_kind(std::move(kinds));
  }
  if (micros.size() == 1) {
    kinds.push_back(recorded(0, {.update = rehearsal()}));
    return kinds;
  }
  replay::Rehearsal none;  // but what it would update may have gradients from the first on
  none.parameters = experiment_.optimizer().parameters();
  auto alone = not_the_last();
  replay::RecordedStep first = recorded(0, {.update = std::move(none)});
  alone.reset();
  const std::vector<at::Tensor> have = first.with_gradients;
  kinds.push_back(recorded(1, {.update = rehearsal(), .have_gradients = have}));
  // Those in between update nothing, and keep their gradients.
  if (in_backward_ && micros.size() > 2) kinds.push_back(recorded(1, {.have_gradients = have}));
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
  return weighted(loss, micro);
}

at::Tensor TrainingStep::weighted(const at::Tensor& loss, const MicroBatch& micro) const {
  const optim::GradScaler& scaler = experiment_.scaler();
  if (experiment_.config().train.accumulate == 1 && experiment_.team().replicas() == 1) return scaler.scale(loss);
  // A tensor and not a number: another share is no other operator.
  return loss * at::full({}, micro.share * scaler.get_scale(), loss.options().requires_grad(false));
}

replay::Forward TrainingStep::through_stages(const std::vector<MicroBatch>& micros, std::vector<at::Tensor>& losses) {
  return [&] {
    losses = experiment_.step_in_stages(
        micros, [&](const at::Tensor& loss, const MicroBatch& micro) { return weighted(loss, micro); });
    return at::Tensor();  // which has gone backward
  };
}

template <class Run>
TrainingStep::Losses TrainingStep::losses_in_stages(const std::vector<MicroBatch>& micros, const Run& run) {
  std::vector<at::Tensor> each;
  run(through_stages(micros, each));
  Losses losses{.sum = at::zeros({}, at::TensorOptions(experiment_.device()))};
  losses.each.assign(micros.size(), 0.0);  // where another process has them
  for (std::size_t i = 0; i < each.size(); ++i) losses.each[i] = each[i].item<double>();
  return losses;
}

template <class Run>
TrainingStep::Losses TrainingStep::losses_of(const data::Batch& batch, std::int64_t update, const Run& run) {
  Losses losses;
  const std::vector<MicroBatch> micros = micros_of(experiment_, batch);
  if (experiment_.is_in_stages()) return losses_in_stages(micros, run);
  for (const MicroBatch& micro : micros) {
    std::optional<replay::GradientHooks> updates;
    if (in_backward_ && &micro == &micros.back()) in_backward_->begin(update, updates);
    const auto alone = &micro != &micros.back() ? not_the_last() : nullptr;
    const at::Tensor loss = run([&] {
      at::Tensor weighted = weighted_loss(micro);
      whole_ = !updates;  // from the backward pass on
      return weighted;
    });
    whole_ = true;
    losses.sum = losses.sum.defined() ? losses.sum + loss : loss;
    if (together_ != nullptr) losses.each.push_back(loss.item<double>());
  }
  return losses;
}

at::Tensor TrainingStep::unscaled(const at::Tensor& loss) const {
  const double scale = experiment_.scaler().get_scale();
  return scale == 1 ? loss : loss / scale;
}

at::Tensor TrainingStep::backward(Session& session, const data::Batch& batch, std::int64_t update) {
  return unscaled(scaled_backward(session, batch, update).sum);
}

TrainingStep::Losses TrainingStep::scaled_backward(Session& session, const data::Batch& batch, std::int64_t update) {
  last_ = {};
  return losses_of(batch, update, [&](const replay::Forward& forward) {
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
  return unscaled(losses_of(batch, update, [](const replay::Forward& forward) { return run_plain(forward); }).sum);
}

TrainingStep::Gradients TrainingStep::gathered(const Losses& losses) {
  Gradients made;
  made.saves = save_requested();
  if (together_ == nullptr) {
    made.loss = unscaled(losses.sum).item<double>();
    return made;
  }
  const at::Tensor state = record::save_random_state(experiment_.generator()).state;
  const Team::Word mine{
      .stops = interrupted(),
      .saves = made.saves,
      .losses = losses.each,
      .random = {reinterpret_cast<const char*>(state.const_data_ptr()), static_cast<std::size_t>(state.numel())}};
  const std::vector<Team::Word> words = experiment_.team().tell(mine);
  const Team& team = experiment_.team();
  for (const Team::Word& word : words) {
    made.stops |= word.stops;
    made.saves |= word.saves;
  }
  for (int drawer = 0; drawer < team.drawers(); ++drawer)
    made.random.push_back(
        words[static_cast<std::size_t>(drawer) * static_cast<std::size_t>(team.layout().tensor)].random);
  at::Tensor sum;  // in the losses' type and order, as one process adds up
  for (std::size_t i = 0; i < losses.each.size(); ++i) {
    for (int replica = 0; replica < team.replicas(); ++replica) {
      const Team::Word& word = words[static_cast<std::size_t>(team.teller_of(replica))];
      const at::Tensor one = at::full({}, word.losses[i], losses.sum.options().device(at::kCPU));
      sum = sum.defined() ? sum + one : one;
    }
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
            std::optional<TeamGradients::Accumulating> alone;
            if (together_ != nullptr) alone.emplace(*together_);
            // Nobody wants them, and plans of shards have no room for all.
            std::optional<replay::GradientHooks> gone;
            if (experiment_.is_sharded()) {
              gone.emplace(
                  experiment_.model().parameters(),
                  [](const at::Tensor& leaf) { at::Tensor(leaf).mutable_grad() = at::Tensor(); },
                  replay::GradientHooks::For::Else);
            }
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
  experiment_.add_up_copies(parallel::Reduction::Purpose::Sums);
  optim::Optimizer& optimizer = experiment_.optimizer();
  if (experiment_.scaler().options().enabled) experiment_.scaler().unscale(optimizer);
  return overflowed()
             ? std::numeric_limits<double>::quiet_NaN()
             : optim::clip_gradients(optimizer.parameters(), experiment_.clipping(), experiment_.other_parts());
}

bool TrainingStep::overflowed() const { return experiment_.scaler().overflowed(&experiment_.optimizer()); }

void TrainingStep::update(std::int64_t update) {
  if (in_backward_) return forget_gradients();  // of weights that took no part
  optim::Optimizer& optimizer = experiment_.optimizer();
  experiment_.scaler().step(optimizer, [&] {
    optimizer.step(experiment_.learning_rate(update));
    experiment_.gather_weights(parallel::Reduction::Purpose::Sums);
  });
  experiment_.scaler().update();
  forget_gradients();
}

void TrainingStep::forget_gradients() {
  experiment_.optimizer().zero_grad();
  if (experiment_.is_sharded()) experiment_.model().zero_grad();  // of a step that has failed
}

replay::Rehearsal TrainingStep::rehearsal() {
  if (in_backward_) {
    replay::Rehearsal each;
    each.each = [this](const at::Tensor& parameter) { in_backward_->rehearse(parameter); };
    each.writes = replay::Rehearsal::Writes::Nothing;
    return each;
  }
  replay::Rehearsal rehearsal([this] {
    experiment_.add_up_copies(parallel::Reduction::Purpose::Trial);
    optim::clip_gradients(experiment_.optimizer().parameters(), experiment_.clipping(),
                          {.counts = experiment_.other_parts().counts});
    experiment_.optimizer().rehearse();
    experiment_.gather_weights(parallel::Reduction::Purpose::Trial);
  });
  rehearsal.parameters = experiment_.optimizer().parameters();
  rehearsal.writes = replay::Rehearsal::Writes::Nothing;
  return rehearsal;
}

}  // namespace snug::train
