#include "snug/train/largest.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_clock.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/tag.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/replay/planned_step.h"
#include "snug/train/experiment.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/training_step.h"

namespace snug::train {
namespace {

constexpr std::int64_t kTokens = 64, kFirstSequence = 512, kFirst = 4;
constexpr double kResolution = 0.02;

/// Sizes that are looked at.
struct Grid {
  std::int64_t step = 1;      ///< all are multiples of it, but for the first ones
  std::int64_t first = 1;     ///< so large that what does not grow with it is there in full, in half of it too
  std::int64_t smallest = 1;  ///< of those that are tried in its place where it does not fit
  double resolution = 0;      ///< of what is found, as a share of it, where that is more than a step
  std::optional<std::int64_t> limit{};

  [[nodiscard]] std::int64_t rounded_down(double size) const {
    return std::max(static_cast<std::int64_t>(size / static_cast<double>(step)) * step, step);
  }
};

/// One size, recorded, and run if it fits.
struct Tried {
  std::optional<Bytes> floor;  ///< none where it could not even be recorded within the budget
  std::optional<Largest> ran;
  std::exception_ptr refusal;  ///< where it was not run
};

class Steps {
 public:
  Steps(const Config& config, Extent extent, Bytes budget) : config_(config), extent_(extent), budget_(budget) {
    if (extent == Extent::Blocks && !config.model.path.empty()) {
      throw UsageError(
          fmt::format("plan: --largest blocks is for new models, and model.path is {}; leave it out, or ask for the "
                      "largest batch or sequence",
                      config.model.path));
    }
  }

  [[nodiscard]] Grid grid() {
    if (extent_ == Extent::Blocks) return {.first = kFirst};
    const std::int64_t parts = config_.train.accumulate;
    if (extent_ == Extent::Batch) return {.step = parts, .first = kFirst * parts, .smallest = parts};
    const std::int64_t limit = experiment(kFirstSequence).language_model().longest();
    return {.step = std::min(kTokens, limit),
            .first = std::min(kFirstSequence, limit),
            .resolution = kResolution,
            .limit = limit};
  }

  Tried tried(std::int64_t size) {
    Tried result;
    try {
      Experiment& made = experiment(size);
      TrainingStep step(made);
      const data::Batch batch = random_batch(made, size);
      std::vector<replay::PlannedStep> kinds = replay::planned(step.record(batch, budget_), "optimal");
      const replay::OpenedWindow window = open_window(made, kinds, plan::Budget::for_limit(budget_));
      result.floor = smallest_budget(kinds, window);
      result.ran = run(step, batch, std::move(kinds));
      result.ran->size = size;
    } catch (const DoesNotFit&) {
      result.refusal = std::current_exception();
    } catch (const OutOfBudget&) {
      result.refusal = std::current_exception();
    }
    if (experiment_) TrainingStep(*experiment_).forget_gradients();  // those of a step that failed, too
    return result;
  }

 private:
  Experiment& experiment(std::int64_t size) {
    // Where backward passes update the weights, each recording needs one that has had no update.
    if (!experiment_ || extent_ == Extent::Blocks || config_.optimizer.in_backward) {
      experiment_.reset();
      if (extent_ == Extent::Blocks) config_.model.blocks = size;
      experiment_ = std::make_unique<Experiment>(config_);
    }
    return *experiment_;
  }

  [[nodiscard]] data::Batch random_batch(const Experiment& made, std::int64_t size) const {
    const memory::TagScope tag(memory::Tag::Staging);
    const std::int64_t rows = extent_ == Extent::Batch ? size : config_.train.batch;
    const std::int64_t tokens = extent_ == Extent::Sequence ? size : config_.model.sequence;
    const auto draw = [&] {
      return at::randint(0, made.language_model().vocabulary(), {rows, tokens}, at::TensorOptions().dtype(at::kLong));
    };
    data::Batch batch{draw(), draw()};
    if (config_.data.packing == Packing::Documents) {  // one in each row, for the memory of the mask
      batch.positions = at::arange(tokens, at::kLong).expand_as(batch.input).contiguous();
      batch.documents = at::zeros_like(batch.input);
    }
    return made.to_device(std::move(batch));
  }

  Largest run(TrainingStep& step, const data::Batch& batch, std::vector<replay::PlannedStep> kinds) const {
    Largest found;
    found.unplanned_peak = replay::unplanned_peak(kinds);
    auto& memory = experiment_->memory();
    Session session = session_of(*experiment_, std::move(kinds), plan::Budget::for_limit(budget_));
    found.predicted_peak = session.predicted_peak();
    memory.reset_peak();
    const double started = memory::seconds_when_done(memory.device());
    step.backward(session, batch, 0);
    found.step_seconds = memory::seconds_when_done(memory.device()) - started;
    found.measured_peak = memory.stats().allocated_peak;
    return found;
  }

  Config config_;
  Extent extent_;
  Bytes budget_;
  std::unique_ptr<Experiment> experiment_;
};

/// The smallest peak of a step as a line over its size.
struct Line {
  double fixed = 0, each = 1;

  static Line through(std::pair<std::int64_t, Bytes> a, std::pair<std::int64_t, Bytes> b) {
    const auto apart = static_cast<double>(std::max<std::int64_t>(b.first - a.first, 1));
    const double each = static_cast<double>(std::max<Bytes>(b.second - a.second, 1)) / apart;
    return {.fixed = static_cast<double>(a.second) - each * static_cast<double>(a.first), .each = each};
  }
  [[nodiscard]] double size_at(Bytes budget) const { return (static_cast<double>(budget) - fixed) / each; }
};

/// What was tried, as far as it decides what is tried next.
class Search {
 public:
  Search(Steps& steps, const Grid& grid, Bytes budget, report::Progress& progress)
      : steps_(steps), grid_(grid), budget_(budget), progress_(progress) {
    if (grid.limit) refused_ = *grid.limit + 1;
  }

  Largest found() {
    for (std::int64_t size = grid_.first; floors_.size() < 2 && size >= grid_.smallest; size /= 2) attempt(size);
    while (!is_exact()) attempt(next());
    if (!best_) std::rethrow_exception(refusal_);
    best_->limit = grid_.limit;
    const Line line = this->line();
    best_->by_memory = grid_.rounded_down(line.size_at(budget_));
    best_->fixed = static_cast<Bytes>(line.fixed);
    best_->bytes_each = line.each;
    return *best_;
  }

 private:
  void attempt(std::int64_t size) {
    progress_.note(fmt::format("trying {}", size));
    Tried tried = steps_.tried(size);
    if (tried.floor) floors_.emplace(size, *tried.floor);
    if (tried.ran) {
      if (!best_ || best_->size < size) best_ = tried.ran;
    } else {
      refused_ = std::min(refused_, size);
      refusal_ = tried.refusal;
    }
    progress_.note(tried.floor ? fmt::format("{} takes {} at the least", size, format_bytes(*tried.floor))
                               : fmt::format("{} takes more than {}", size, format_bytes(budget_)));
  }

  /// Of the two largest that were recorded: what is beside it matters least there.
  [[nodiscard]] Line line() const {
    const std::vector<std::pair<std::int64_t, Bytes>> all(floors_.begin(), floors_.end());
    if (all.empty()) return Line::through({0, 0}, {grid_.step, budget_});
    return Line::through(all.size() > 1 ? all[all.size() - 2] : std::pair<std::int64_t, Bytes>{0, 0}, all.back());
  }

  [[nodiscard]] std::int64_t smallest_gap() const {
    return best_ ? grid_.rounded_down(grid_.resolution * static_cast<double>(best_->size)) : grid_.step;
  }

  [[nodiscard]] bool is_exact() const {
    const std::int64_t fits = best_ ? best_->size : 0;
    // A limit need not be a multiple of the step.
    return refused_ - fits <= smallest_gap() || grid_.rounded_down(static_cast<double>(refused_ - 1)) <= fits;
  }

  /// Strictly between what fits and what does not.
  [[nodiscard]] std::int64_t next() const {
    const std::int64_t fits = best_ ? best_->size : 0;
    const std::int64_t least = fits + (best_ ? smallest_gap() : grid_.step);
    const std::int64_t most = grid_.rounded_down(static_cast<double>(refused_ - 1));
    return std::clamp(grid_.rounded_down(line().size_at(budget_)), std::min(least, most), most);
  }

  Steps& steps_;
  const Grid& grid_;
  Bytes budget_;
  report::Progress& progress_;
  std::map<std::int64_t, Bytes> floors_;
  std::int64_t refused_ = std::int64_t{1} << 40;  // more than there can be
  std::exception_ptr refusal_;
  std::optional<Largest> best_;
};

}  // namespace

Largest largest(const Config& config, Extent extent, Bytes budget, report::Progress& progress) {
  Steps steps(config, extent, budget);
  const Grid grid = steps.grid();
  return Search(steps, grid, budget, progress).found();
}

}  // namespace snug::train
