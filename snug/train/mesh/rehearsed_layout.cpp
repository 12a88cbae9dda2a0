#include "snug/train/mesh/rehearsed_layout.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/described/described_device.h"
#include "snug/memory/device_clock.h"
#include "snug/parallel/rehearsed_world.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/record/random_state.h"
#include "snug/replay/planned_step.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/parallel_rules.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/run_device.h"
#include "snug/train/training_step.h"
#include "snug/train/whole_step.h"

namespace snug::train {
namespace {

constexpr int kSteps = 3;  // of which the shortest counts

/// Of a micro-batch of each of the stages of this process.
std::vector<plan::StageSeconds> seconds_by_stage(const std::vector<replay::PlannedStep>& kinds,
                                                 const std::vector<plan::MemoryPlan>& plans, int stages) {
  std::vector<plan::StageSeconds> all(static_cast<std::size_t>(stages));
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i].step.kind != replay::StepKind::MicroBatch) continue;
    const plan::StepGraph& graph = kinds[i].step.graph;
    const plan::Simulation simulated = plan::simulate(graph, plans[i], plan::Detail::Timeline);
    const std::size_t turn = graph.turn_event();
    const double forward = turn == 0 ? 0 : simulated.times.at(turn - 1);
    for (const std::int32_t stage : graph.stages)
      all.at(static_cast<std::size_t>(stage)) = {
          .forward = forward, .backward_input = simulated.seconds - forward, .backward_weights = 0};
  }
  return all;
}

/// One process, and what it takes.
class OneProcess {
 public:
  OneProcess(const Config& config, parallel::Rehearsal& rehearsal, int rank)
      : rehearsal_(rehearsal), experiment_(config, team_for(config, rehearsal, rank)) {
    const bool differ =
        config.parallel.pipeline > 1 || experiment_.language_model().vocabulary() % config.parallel.tensor != 0;
    rehearsal.set_others(differ ? parallel::Rehearsal::Others::Unlike : parallel::Rehearsal::Others::Alike);
  }

  [[nodiscard]] const std::vector<int>& blocks_by_stage() const { return experiment_.blocks_by_stage(); }
  [[nodiscard]] std::int64_t tokens_per_step() const { return experiment_.tokens_per_step(); }

  RehearsedProcess run(int place) {
    const Config& config = experiment_.config();
    RehearsedProcess found;
    found.place = place;
    PlannedExperiment planned = plan_experiment(experiment_, Kinds::Run);
    const std::vector<plan::MemoryPlan> plans = replay::plan_all(planned.kinds, planned.budget);
    const std::int64_t micros = config.train.accumulate;
    const bool is_in_stages = experiment_.is_in_stages();
    found.unplanned_peak = replay::unplanned_peak(planned.kinds);
    found.floor = smallest_budget(planned.kinds, planned.window);
    double busy = 0;
    if (is_in_stages) {
      const plan::PipelineSchedule schedule = plan::pipeline_schedule_from(config.parallel.schedule);
      found.seconds = seconds_by_stage(planned.kinds, plans, plan::chunks_of(schedule));
      for (const plan::StageSeconds& one : found.seconds)
        busy += static_cast<double>(micros) * (one.forward + one.backward_input);
      for (std::size_t i = 0; i < planned.kinds.size(); ++i) {
        const auto stages = static_cast<double>(planned.kinds[i].step.graph.stages.size());
        if (planned.kinds[i].step.kind == replay::StepKind::MicroBatch)
          found.unplanned_seconds += static_cast<double>(micros) * stages * plans[i].unplanned_seconds;
      }
    } else {
      found.unplanned_seconds =
          whole_step_seconds(planned.kinds, micros, [&](std::size_t i) { return plans[i].unplanned_seconds; });
    }
    Session session = session_of(experiment_, std::move(planned.kinds), planned.budget);
    found.predicted_peak = session.predicted_peak();
    found.rest = std::max(step_seconds(session, found) - busy, 0.0);
    return found;
  }

  /// A process that has more than a hundredth more of what is divided among both, where there is one: the first of
  /// those with the most.
  [[nodiscard]] std::optional<int> fuller() const {
    const TeamGradients* const gradients = experiment_.together();
    if (gradients == nullptr) return std::nullopt;
    const auto has = [&](int rank) { return gradients->bytes_of_shards(rank); };
    const auto& group = *experiment_.team().sharers();
    const int own = group.members()[static_cast<std::size_t>(group.rank())];
    const int most = *std::ranges::max_element(group.members(), {}, has);
    return has(most) * 100 > has(own) * 101 ? std::optional(most) : std::nullopt;
  }

 private:
  static Team team_for(const Config& config, const parallel::Rehearsal& rehearsal, int rank) {
    Team team(rehearsal.world_of(rank), layout_of(config.parallel));
    check_for_team(config, team);
    return team;
  }

  /// Of a step with its update, without what it waits for other stages.
  double step_seconds(Session& session, RehearsedProcess& found) {
    TrainingStep step(experiment_);
    double shortest = 0;
    // Which are there beside the steps of a run.
    const DataConfig& data = experiment_.config().data;
    std::vector<data::Batch> ahead;
    for (std::int64_t i = 0; data.workers > 0 && i < data.prefetch; ++i) ahead.push_back(experiment_.train_batch(i));
    experiment_.memory().reset_peak();
    for (int i = 0; i <= kSteps; ++i) {
      if (interrupted()) throw Stopped("plan: interrupted while layouts were rehearsed");
      const data::Batch batch = experiment_.train_batch(i);
      const record::RandomState random = record::save_random_state(experiment_.generator());  // as make_gradients()
      const double began = now(), waited = rehearsal_.seconds_of_messages();
      step.backward(session, batch, i);
      tell(random);
      step.clip();
      step.update(i);
      double took = now() - began;
      if (experiment_.is_in_stages()) took -= rehearsal_.seconds_of_messages() - waited;
      if (i == 1 || (i > 1 && took < shortest)) shortest = took;  // the first sets things up
    }
    found.measured_peak = experiment_.memory().stats().allocated_peak;
    return shortest;
  }

  [[nodiscard]] double now() const { return memory::seconds_when_done(experiment_.device()); }

  /// As processes tell each other of a step.
  void tell(const record::RandomState& random) const {
    if (experiment_.team().size() == 1) return;
    Team::Word word{.losses = std::vector<double>(static_cast<std::size_t>(experiment_.config().train.accumulate))};
    word.random.resize(static_cast<std::size_t>(random.state.numel()));
    (void)experiment_.team().tell(word);
  }

  parallel::Rehearsal& rehearsal_;
  Experiment experiment_;
};

/// Plans count what the process has that has most.
void with_peaks_of(RehearsedProcess& one, const RehearsedProcess& other) {
  for (Bytes RehearsedProcess::*const peak : {&RehearsedProcess::unplanned_peak, &RehearsedProcess::floor,
                                              &RehearsedProcess::predicted_peak, &RehearsedProcess::measured_peak})
    one.*peak = std::max(one.*peak, other.*peak);
}

/// How long what each stage has made is on its way to the next one, in the replica where that is longest.
std::vector<double> hand_over(const Config& config, const Devices& devices, Bytes bytes, std::size_t stages) {
  const TeamLayout layout = layout_of(config.parallel);
  std::vector<double> all(stages, 0.0);
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const auto rank_of = [&](std::size_t which, int replica) {
      const int place = static_cast<int>(which % static_cast<std::size_t>(layout.pipeline));
      return replica * layout.per_replica() + place * layout.context * layout.tensor;
    };
    for (int replica = 0; replica < devices.count / layout.per_replica(); ++replica) {
      all[stage] = std::max(all[stage], parallel::seconds_of_message(bytes, rank_of(stage, replica),
                                                                     rank_of(stage + 1, replica), devices.links));
    }
  }
  return all;
}

/// Of all processes, when they wait for each other.
void put_together(RehearsedLayout& found, const Config& config, const Devices& devices, Bytes message) {
  for (const RehearsedProcess& one : found.processes) found.seconds = std::max(found.seconds, one.rest);
  const int places = static_cast<int>(config.parallel.pipeline);
  if (places == 1) return;
  const plan::PipelineSchedule schedule = plan::pipeline_schedule_from(config.parallel.schedule);
  std::vector<plan::StageSeconds> by_stage;
  for (std::size_t chunk = 0; chunk < static_cast<std::size_t>(plan::chunks_of(schedule)); ++chunk) {
    for (const RehearsedProcess& one : found.processes) by_stage.push_back(one.seconds.at(chunk));
  }
  found.hand_over = hand_over(config, devices, message, by_stage.size());
  const plan::PipelineShape shape{.processes = places, .micro_batches = static_cast<int>(config.train.accumulate)};
  const plan::PipelineRun run = plan::run_pipeline(plan::actions_of(schedule, shape), by_stage, found.hand_over);
  found.seconds += run.seconds;
  const double busy = std::accumulate(run.busy.begin(), run.busy.end(), 0.0) / places;
  found.idle = (run.seconds - busy) / found.seconds;
}

}  // namespace

RehearsedLayout rehearse_layout(const Config& config, const Devices& devices) {
  validate(config);
  const TeamLayout layout = layout_of(config.parallel);
  RehearsedLayout found;
  const c10::Device device = device_of(config);
  parallel::Rehearsal rehearsal(devices.count, devices.links, device);
  const int of_stage = layout.context * layout.tensor;
  std::int64_t tokens = 0;
  std::map<std::vector<int>, int> like;  // places in the middle, by the blocks of their stages
  std::vector<int> blocks;
  for (int place = 0; place < layout.pipeline; ++place) {
    if (place > 0 && place < layout.pipeline - 1) {
      std::vector<int> own;
      for (std::size_t stage = static_cast<std::size_t>(place); stage < blocks.size();
           stage += static_cast<std::size_t>(layout.pipeline))
        own.push_back(blocks[stage]);
      if (const auto [same, is_new] = like.emplace(own, place); !is_new) {
        found.processes.push_back(found.processes[static_cast<std::size_t>(same->second)]);
        found.processes.back().place = place;
        continue;
      }
    }
    std::optional<described::AnyAmountOfMemory> whole_models;
    if (device.type() == described::kDescribed) whole_models.emplace();
    std::optional<OneProcess> process(std::in_place, config, rehearsal, place * of_stage);
    whole_models.reset();
    blocks = process->blocks_by_stage();
    found.blocks = std::accumulate(blocks.begin(), blocks.end(), 0);
    tokens = process->tokens_per_step();
    found.processes.push_back(process->run(place));
    const std::optional<int> fuller = process->fuller();
    process.reset();
    if (fuller) {
      if (device.type() == described::kDescribed) whole_models.emplace();
      process.emplace(config, rehearsal, *fuller);
      whole_models.reset();
      with_peaks_of(found.processes.back(), process->run(place));
    }
  }
  put_together(found, config, devices, rehearsal.largest_message());
  found.tokens_per_second = static_cast<double>(tokens) / found.seconds;
  return found;
}

}  // namespace snug::train
