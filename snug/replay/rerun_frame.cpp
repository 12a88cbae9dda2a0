#include "snug/replay/rerun_frame.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "snug/record/operator_traits.h"
#include "snug/replay/detached.h"
#include "snug/replay/rerun_checks.h"
#include "snug/replay/saved_place.h"
#include "snug/replay/unpacked_originals.h"

namespace snug::replay {
namespace {

thread_local std::shared_ptr<RerunFrame> t_frame;
thread_local const void* t_tape_of_frame = nullptr;  // that was recording when the frame was opened
thread_local int t_task_of_frame = -1;               // the backward pass that it was opened in
const std::shared_ptr<RerunFrame> kNone;

std::vector<const void*> storages_of(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> storages;
  for (const at::Tensor& t : tensors) {
    if (t.defined() && t.has_storage()) storages.push_back(t.storage().unsafeGetStorageImpl());
  }
  return storages;
}

}  // namespace

/// Through LibTorch's engine it must go as an exception like any other.
struct RerunFrame::StopRerun : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return "checkpoint: nothing more is needed"; }
};

/// Saved since the latest operator. One that saves its arguments does so before it runs: it may still write them, as
/// rrelu does the noise that it draws.
struct RerunFrame::Recent {
  std::shared_ptr<SavedPlace> place;
  at::Tensor tensor;
  std::size_t index;
};

struct RerunFrame::State {
  State(RepeatableCall::Function function, const std::vector<at::Tensor>& arguments, const Rerun& options)
      : call(std::move(function), arguments, options), checks(options), early_stop(stops_early(options)) {}

  RepeatableCall call;
  RerunChecks checks;
  bool early_stop;

  std::recursive_mutex mutex;
  std::vector<std::weak_ptr<SavedPlace>> places;  // in the order of saving
  std::vector<Recent> recent;
  bool forward_over = false;

  bool running = false;                        // again
  std::vector<const void*> argument_storages;  // of the rerun
  std::size_t reached = 0;                     // of the places, in the rerun
  bool has_all = false;                        // the rerun may stop
  bool stopping = false;                       // it has been told to
};

class RerunFrame::ForwardHook final : public CollectedHooks {
 public:
  explicit ForwardHook(std::shared_ptr<RerunFrame> frame) : frame_(std::move(frame)) {}

 private:
  void pack(const at::Tensor& tensor) override {
    place_ = std::make_shared<SavedPlace>(tensor);
    frame_->add(place_, tensor);
  }
  at::Tensor unpack() override { return frame_->get(*place_); }

  std::shared_ptr<RerunFrame> frame_;
  std::shared_ptr<SavedPlace> place_;
};

/// The graph of a rerun is thrown away: only its saved tensors count.
class RerunFrame::RerunHook final : public CollectedHooks {
 public:
  explicit RerunHook(RerunFrame& frame) : frame_(frame) {}

 private:
  void pack(const at::Tensor& tensor) override {
    tensor_ = detached(tensor);
    frame_.fill(tensor_);
  }
  at::Tensor unpack() override { return tensor_; }  // the function differentiates something itself

  RerunFrame& frame_;
  at::Tensor tensor_;
};

RerunFrame::RerunFrame(RepeatableCall::Function function, const std::vector<at::Tensor>& arguments, Rerun options)
    : state_(std::make_unique<State>(std::move(function), arguments, options)) {}

RerunFrame::~RerunFrame() = default;

std::unique_ptr<torch::autograd::SavedVariableHooks> RerunFrame::hooks() {
  if (state_->running) return std::make_unique<RerunHook>(*this);
  return std::make_unique<ForwardHook>(shared_from_this());
}

std::vector<std::string>* RerunFrame::log() {
  return state_->checks.log(state_->running ? record::Run::Again : record::Run::First);
}

bool RerunFrame::watches() const noexcept { return state_->running || state_->checks.compares_contents(); }

// --- forward -------------------------------------------------------------------------------------------------------

void RerunFrame::add(const std::shared_ptr<SavedPlace>& place, const at::Tensor& tensor) {
  const std::lock_guard lock(state_->mutex);
  if (watches()) state_->recent.push_back({place, detached(tensor), state_->places.size()});
  state_->places.push_back(place);
}

void RerunFrame::forward_is_over() noexcept {
  State& s = *state_;
  if (s.running) return;
  s.forward_over = true;
  for (const Recent& r : std::exchange(s.recent, {})) {
    try {
      is_final(r);
    } catch (...) {  // no memory for a copy: it goes unchecked
    }
  }
}

// --- forward and rerun ---------------------------------------------------------------------------------------------

/// The contents of a saved tensor are what backward will see.
void RerunFrame::is_final(const Recent& recent) {
  const State& s = *state_;
  if (s.running) {
    s.checks.check_contents(*recent.place, recent.tensor, {recent.index, s.places.size()});
  } else {
    s.checks.remember_contents(*recent.place, recent.tensor);
  }
}

void RerunFrame::before_operator(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  State& s = *state_;
  if (s.recent.empty() && !s.has_all) return;
  std::vector<const void*> written;
  const record::OperatorTraits& traits = record::traits_of(op);
  record::for_each_written(traits, record::arguments_on(stack, traits),
                           [&](const at::Tensor& t) { written.push_back(t.storage().unsafeGetStorageImpl()); });
  const auto unfinished = [&](const Recent& r) {
    return r.tensor.has_storage() &&
           std::ranges::find(written, r.tensor.storage().unsafeGetStorageImpl()) != written.end();
  };
  std::vector<Recent> waiting;
  for (Recent& r : std::exchange(s.recent, {})) {
    if (unfinished(r)) {
      waiting.push_back(std::move(r));
    } else {
      is_final(r);
    }
  }
  s.recent = std::move(waiting);
  if (s.has_all && s.recent.empty()) stop();
}

// --- rerun ---------------------------------------------------------------------------------------------------------

void RerunFrame::fill(const at::Tensor& tensor) {
  State& s = *state_;
  const std::size_t index = s.reached++;
  // A backward pass in the function itself asks for what has been saved so far.
  const bool stops_early = s.early_stop || !s.forward_over;
  if (index >= s.places.size()) {
    if (stops_early) stop();
    s.checks.refuse_more_than(s.places.size());
  }
  if (const auto place = s.places[index].lock()) {
    const SavedLook now(tensor);
    const RerunChecks::Position position{index, s.places.size()};
    s.checks.check_metadata(place->look(), now, position);
    // Arguments have been checked as they were unpacked, and may have a new counter.
    const bool is_argument = std::ranges::find(s.argument_storages, now.storage) != s.argument_storages.end();
    if (!is_argument) s.checks.check_unmodified(place->look(), now, tensor, position);
    place->fill(tensor);
    s.recent.push_back({place, tensor, index});
  }
  // Not here: the operator that saves its arguments may be about to fill one.
  s.has_all = stops_early && s.reached == s.places.size();
}

void RerunFrame::stop() {
  state_->stopping = true;
  throw StopRerun{};
}

void RerunFrame::rerun() {
  State& s = *state_;
  const std::vector<at::Tensor> arguments = s.call.arguments();
  s.argument_storages = storages_of(arguments);
  s.running = true;
  s.reached = 0;
  s.has_all = s.stopping = false;
  s.recent.clear();
  s.checks.begin_rerun();
  const auto end = [&s] {
    s.recent.clear();
    s.running = s.has_all = s.stopping = false;
  };
  bool stopped = false;
  try {
    const RepeatableCall::ThreadStateScope as_then(s.call);
    const RerunFrameScope scope(shared_from_this());
    s.call(arguments);
    for (const Recent& r : s.recent) is_final(r);
  } catch (...) {
    stopped = s.stopping;  // and not by the type: through Python a StopRerun comes back as another exception
    if (!stopped) {
      end();
      clear();
      throw;
    }
  }
  end();
  if (stopped || s.reached == s.places.size()) return;
  clear();
  s.checks.check_count(s.places.size(), s.reached);
}

void RerunFrame::clear() {
  const PatientLock lock(state_->mutex);
  for (const auto& weak : state_->places) {
    if (const auto place = weak.lock()) place->clear();
  }
}

// --- backward ------------------------------------------------------------------------------------------------------

at::Tensor RerunFrame::get(SavedPlace& place) {
  const PatientLock lock(state_->mutex);
  if (!place.filled()) {
    // Somebody reads it again, and still has what was handed out.
    if (at::Tensor again = place.taken_before(); again.defined()) return again;
    rerun();
    if (torch::autograd::get_current_graph_task_id() != -1) {
      torch::autograd::Engine::get_default_engine().queue_callback([frame = weak_from_this()] {
        if (const auto alive = frame.lock()) alive->clear();
      });
    }
  }
  if (!place.filled()) state_->checks.refuse_missing();
  // Memory falls as backward goes on, with retain_graph too: a later pass runs the function again.
  return place.take();
}

// --- which frame ---------------------------------------------------------------------------------------------------

RerunFrameScope::RerunFrameScope(std::shared_ptr<RerunFrame> frame)
    : previous_(std::exchange(t_frame, std::move(frame))),
      previous_tape_(std::exchange(t_tape_of_frame, record::recording_tape().get())),
      previous_task_(std::exchange(t_task_of_frame, torch::autograd::get_current_graph_task_id())) {
  if (std::vector<std::string>* names = t_frame->log()) log_.emplace(*names);
  if (t_frame->watches()) {
    gate_.emplace(record::OperatorGate::Calls{
        .before = [frame = t_frame.get()](const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
          frame->before_operator(op, stack);
        }});
  }
}

RerunFrameScope::~RerunFrameScope() {
  const std::shared_ptr<RerunFrame> frame = std::exchange(t_frame, std::move(previous_));
  t_tape_of_frame = previous_tape_;
  t_task_of_frame = previous_task_;
  gate_.reset();
  python_hooks_.reset();
  frame->forward_is_over();  // what it saves goes to what lies around
}

const std::shared_ptr<RerunFrame>& innermost_rerun_frame() {
  const bool innermost = t_frame && record::recording_tape().get() == t_tape_of_frame &&
                         torch::autograd::get_current_graph_task_id() == t_task_of_frame;
  return innermost ? t_frame : kNone;
}

}  // namespace snug::replay
