#include "snug/replay/rerun_frame.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "snug/memory/tag.h"
#include "snug/record/contents_hash.h"
#include "snug/record/leaf_names.h"
#include "snug/record/operator_traits.h"
#include "snug/record/random_state.h"
#include "snug/record/recording.h"
#include "snug/replay/make_node.h"

namespace snug {

namespace {
thread_local int t_early_stop = -1;  // no override
}

EarlyStopScope::EarlyStopScope(bool early_stop) : previous_(std::exchange(t_early_stop, early_stop ? 1 : 0)) {}
EarlyStopScope::~EarlyStopScope() { t_early_stop = previous_; }

namespace replay {

/// What autocast keeps for each thread beside its dispatch keys. A member of RerunFrame::State, which the header
/// declares, so not in the anonymous namespace.
struct AutocastState {
  at::ScalarType cpu = at::autocast::get_autocast_dtype(at::kCPU);
  at::ScalarType cuda = at::autocast::get_autocast_dtype(at::kCUDA);
  bool cache = at::autocast::is_autocast_cache_enabled();
  void set() const {
    at::autocast::set_autocast_dtype(at::kCPU, cpu);
    at::autocast::set_autocast_dtype(at::kCUDA, cuda);
    at::autocast::set_autocast_cache_enabled(cache);
  }
};

namespace {

thread_local std::shared_ptr<RerunFrame> t_frame;
thread_local const void* t_tape_of_frame = nullptr;  // that was recording when the frame was opened
thread_local int t_task_of_frame = -1;               // the backward pass that it was opened in
const std::shared_ptr<RerunFrame> kNone;

/// As detach() does, but not an operator, which observers and gates would see.
at::Tensor detached(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(), /*allow_tensor_metadata_change=*/false));
}

/// A tensor whose history may have to be made anew, which is_leaf() does not know.
bool is_differentiable_view(const at::Tensor& tensor) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  return view != nullptr && view->has_bw_view();
}

/// The result of some operator, as a rerun sees it: gradients may be asked for, and it may be written.
at::Tensor with_history(const at::Tensor& tensor, bool has_history) {
  if (!has_history) return tensor;
  at::Tensor copy = detached(tensor);
  torch::autograd::impl::set_gradient_edge(copy, {make_node<torch::autograd::Identity>(), /*input_nr=*/0});
  return copy;
}

std::string metadata(const std::vector<std::int64_t>& sizes, c10::ScalarType dtype, c10::Device device) {
  return fmt::format("{} [{}] on {}", c10::toString(dtype), fmt::join(sizes, ", "), device.str());
}

}  // namespace

/// Through LibTorch's engine it must go as an exception like any other.
struct RerunFrame::StopRerun : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return "checkpoint: nothing more is needed"; }
};

/// What forward saved: what it looked like, and the tensor while a backward pass has need of it.
struct RerunFrame::Place {
  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device{c10::kCPU};
  std::optional<std::uint64_t> hash;
  const void* storage = nullptr;
  std::uint32_t version = 0;
  bool versioned = false;
  at::Tensor tensor;
  c10::weak_intrusive_ptr<c10::TensorImpl> last{c10::intrusive_ptr<c10::TensorImpl>()};  // handed out before
  std::uint32_t filled_version = 0;  // of the rerun's tensor when it was saved

  void describe(const at::Tensor& t) {
    sizes = t.sizes().vec();
    dtype = t.scalar_type();
    device = t.device();
    storage = t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
    const c10::VariableVersion& counter = t.unsafeGetTensorImpl()->version_counter();
    versioned = counter.enabled();
    if (versioned) version = counter.current_version();
  }
};

struct RerunFrame::State {
  Call call;
  Rerun options;
  bool early_stop;
  /// Saved as an operator saves its inputs, but without their history: a node that lives on, or is looked at sooner,
  /// because of a checkpoint can change the order in which autograd adds up (views that were written, second order).
  struct SavedArgument {
    torch::autograd::SavedVariable saved;
    bool defined = false;
    bool has_history = false;
  };
  std::vector<SavedArgument> arguments;
  at::ThreadLocalState thread;
  AutocastState autocast;
  bool grad_mode;
  std::vector<record::RandomState> random;

  std::recursive_mutex mutex;
  std::vector<std::weak_ptr<Place>> places;  // in the order of saving
  bool running = false;
  bool forward_over = false;
  std::vector<const void*> argument_storages;  // of the rerun
  std::size_t reached = 0;                     // of the places, in the rerun
  bool has_all = false;                        // the rerun may stop
  bool stopping = false;                       // it has been told to
  /// Saved since the latest operator. One that saves its arguments does so before it runs: it may still write them, as
  /// rrelu does the noise that it draws.
  struct Recent {
    std::shared_ptr<Place> place;
    at::Tensor tensor;
    std::size_t index;
  };
  std::vector<Recent> recent;
  std::vector<std::string> forward_operators, rerun_operators;  // for debug
};

class RerunFrame::ForwardHook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit ForwardHook(std::shared_ptr<RerunFrame> frame) : frame_(std::move(frame)) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    place_->describe(tensor);
    frame_->add(place_, tensor);
  }
  at::Tensor call_unpack_hook() override {
    try {
      return frame_->get(place_);
    } catch (const Error&) {
      throw_into_libtorch();
    }
  }

 private:
  std::shared_ptr<RerunFrame> frame_;
  std::shared_ptr<Place> place_ = std::make_shared<Place>();
};

/// The graph of a rerun is thrown away: only its saved tensors count.
class RerunFrame::RerunHook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit RerunHook(RerunFrame& frame) : frame_(frame) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = detached(tensor);
    try {
      frame_.fill(tensor_);
    } catch (const Error&) {
      throw_into_libtorch();
    }
  }
  at::Tensor call_unpack_hook() override { return tensor_; }  // the function differentiates something itself

 private:
  RerunFrame& frame_;
  at::Tensor tensor_;
};

RerunFrame::RerunFrame(Call call, const std::vector<at::Tensor>& arguments, Rerun options)
    : state_(std::make_unique<State>()) {
  state_->call = std::move(call);
  state_->options = options;
  state_->early_stop = t_early_stop >= 0 ? t_early_stop == 1 : options.early_stop;
  state_->grad_mode = at::GradMode::is_enabled();
  for (const at::Tensor& argument : arguments) {
    State::SavedArgument& a = state_->arguments.emplace_back();
    if (!argument.defined()) continue;
    a.defined = true;
    const bool leaf = argument.is_leaf() && !is_differentiable_view(argument);
    a.has_history = argument.requires_grad() && !leaf;
    a.saved = torch::autograd::SavedVariable(leaf ? argument : detached(argument), /*is_output=*/false);
  }
  if (!options.preserve_rng_state) return;
  for (at::Generator& generator : record::default_generators())
    state_->random.push_back(record::save_random_state(generator));
}

RerunFrame::~RerunFrame() = default;

std::unique_ptr<torch::autograd::SavedVariableHooks> RerunFrame::hooks() {
  if (state_->running) return std::make_unique<RerunHook>(*this);
  return std::make_unique<ForwardHook>(shared_from_this());
}

std::vector<std::string>* RerunFrame::log() {
  if (!state_->options.debug) return nullptr;
  return state_->running ? &state_->rerun_operators : &state_->forward_operators;
}

std::string RerunFrame::debug_words() const {
  if (!state_->options.debug) return "; Rerun{.debug = true} tells where it does not";
  return "; " + where_they_part(state_->forward_operators, state_->rerun_operators);
}

void RerunFrame::add(const std::shared_ptr<Place>& place, const at::Tensor& tensor) {
  const std::lock_guard lock(state_->mutex);
  if (watches()) state_->recent.push_back({place, detached(tensor), state_->places.size()});
  state_->places.push_back(place);
}

bool RerunFrame::watches() const noexcept {
  return state_->running || state_->options.determinism_check == DeterminismCheck::Values;
}

/// The contents of a saved tensor are what backward will see.
void RerunFrame::is_final(Place& place, const at::Tensor& tensor, std::size_t index) {
  State& s = *state_;
  if (s.options.determinism_check != DeterminismCheck::Values) return;
  const std::uint64_t hash = record::contents_hash(tensor);
  if (!s.running) {
    place.hash = hash;
    return;
  }
  // Memory that outlives the function is what it is: running statistics, which the first run has moved.
  const void* storage = tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
  if ((storage != nullptr && storage == place.storage) || !place.hash || hash == *place.hash) return;
  throw Error(fmt::format(
      "checkpoint: saved tensor {} of {} ({}) holds other values when the function runs again: it must compute the "
      "same both times; what it draws at random must come from LibTorch's default generators",
      index + 1, s.places.size(), metadata(place.sizes, place.dtype, place.device)));
}

void RerunFrame::before_operator(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  State& s = *state_;
  if (s.recent.empty() && !s.has_all) return;
  std::vector<const void*> written;
  const record::OperatorTraits& traits = record::traits_of(op);
  record::for_each_written(traits, record::arguments_on(stack, traits),
                           [&](const at::Tensor& t) { written.push_back(t.storage().unsafeGetStorageImpl()); });
  const auto unfinished = [&](const State::Recent& r) {
    return r.tensor.has_storage() &&
           std::ranges::find(written, r.tensor.storage().unsafeGetStorageImpl()) != written.end();
  };
  std::vector<State::Recent> waiting;
  for (State::Recent& r : std::exchange(s.recent, {})) {
    if (unfinished(r)) {
      waiting.push_back(std::move(r));
    } else {
      is_final(*r.place, r.tensor, r.index);
    }
  }
  s.recent = std::move(waiting);
  if (!s.has_all || !s.recent.empty()) return;
  s.stopping = true;
  throw StopRerun{};
}

void RerunFrame::fill(const at::Tensor& tensor) {
  State& s = *state_;
  const std::size_t index = s.reached++;
  // A backward pass in the function itself asks for what has been saved so far.
  const bool stops_early = s.early_stop || !s.forward_over;
  if (index >= s.places.size()) {
    if (stops_early) {
      s.stopping = true;
      throw StopRerun{};
    }
    throw Error(fmt::format(
        "checkpoint: the function saved {} tensors in forward and is saving more than that when it runs again: it "
        "must compute the same both times{}",
        s.places.size(), debug_words()));
  }
  if (const auto place = s.places[index].lock()) {
    Place now;
    now.describe(tensor);
    const bool metadata_differs = now.sizes != place->sizes || now.dtype != place->dtype || now.device != place->device;
    if (s.options.determinism_check != DeterminismCheck::None && metadata_differs) {
      throw Error(fmt::format(
          "checkpoint: saved tensor {} of {} was {} in forward and is {} when the function runs again: it must compute "
          "the same both times{}",
          index + 1, s.places.size(), metadata(place->sizes, place->dtype, place->device),
          metadata(now.sizes, now.dtype, now.device), debug_words()));
    }
    const bool same_storage = now.storage == place->storage && now.storage != nullptr;
    // Arguments have been checked as they were unpacked, and may have a new counter.
    const bool is_argument = std::ranges::find(s.argument_storages, now.storage) != s.argument_storages.end();
    if (same_storage && !is_argument && now.versioned && place->versioned && now.version != place->version) {
      throw Error(fmt::format(
          "checkpoint: {}, saved tensor {} of {}, was modified in place since the forward pass (version {} then, {} "
          "now): its gradient would be wrong; modify it after backward",
          record::leaf_name(tensor.storage().unsafeGetStorageImpl(), static_cast<Bytes>(tensor.storage().nbytes())),
          index + 1, s.places.size(), place->version, now.version));
    }
    place->tensor = tensor;
    place->filled_version = now.version;
    s.recent.push_back({place, tensor, index});
  }
  // Not here: the operator that saves its arguments may be about to fill one.
  s.has_all = stops_early && s.reached == s.places.size();
}

void RerunFrame::rerun() {
  State& s = *state_;
  std::vector<at::Tensor> arguments;
  for (const State::SavedArgument& a : s.arguments)
    arguments.push_back(a.defined ? with_history(a.saved.unpack(), a.has_history) : at::Tensor());
  s.argument_storages.clear();
  for (const at::Tensor& a : arguments) {
    if (a.defined() && a.has_storage()) s.argument_storages.push_back(a.storage().unsafeGetStorageImpl());
  }

  const AutocastState autocast_before;
  std::vector<record::RandomState> random_now;
  const auto restore = [&] {
    for (const record::RandomState& r : random_now) record::restore(r);
    autocast_before.set();
    s.running = s.has_all = s.stopping = false;
  };
  s.running = true;
  s.reached = 0;
  s.has_all = s.stopping = false;
  s.recent.clear();
  s.rerun_operators.clear();
  bool stopped = false;
  {
    const at::ThreadLocalStateGuard thread(s.thread);
    try {
      s.autocast.set();
      // Casts of weights that are in the cache by now may not have been then.
      at::autocast::set_autocast_cache_enabled(false);
      for (record::RandomState& r : s.random) {
        random_now.push_back(record::save_random_state(r.generator));
        record::restore(r);
      }
      const at::AutoGradMode grad_mode(s.grad_mode);
      const RerunFrameScope scope(shared_from_this());
      s.call(arguments);
      for (const State::Recent& r : s.recent) is_final(*r.place, r.tensor, r.index);
    } catch (...) {
      // Through Python it comes back as another exception.
      stopped = s.stopping;
      if (!stopped) {
        s.recent.clear();
        restore();
        clear();
        throw;
      }
    }
    s.recent.clear();
  }
  restore();
  if (!stopped && s.reached != s.places.size()) {
    clear();
    throw Error(fmt::format(
        "checkpoint: the function saved {} tensors in forward and {} when it ran again: it must compute the same both "
        "times{}",
        s.places.size(), s.reached, debug_words()));
  }
}

/// As autograd does without a checkpoint: what the function has written since it was saved is not what was saved.
void RerunFrame::check_unchanged(const Place& place, const at::Tensor& tensor) const {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (!counter.enabled() || counter.current_version() == place.filled_version) return;
  throw Error(fmt::format(
      "checkpoint: a tensor that backward needs, {}, was modified in place after an operator saved it for its gradient "
      "(version {} then, {} now): the gradient would be wrong; modify a clone of it",
      metadata(place.sizes, place.dtype, place.device), place.filled_version, counter.current_version()));
}

void RerunFrame::clear() {
  const PatientLock lock(state_->mutex);
  for (const auto& weak : state_->places) {
    if (const auto place = weak.lock()) place->tensor = at::Tensor();
  }
}

at::Tensor RerunFrame::get(const std::shared_ptr<Place>& place) {
  const PatientLock lock(state_->mutex);
  if (!place->tensor.defined()) {
    // Somebody reads it again, and still has what was handed out.
    if (auto alive = place->last.lock()) {
      at::Tensor again(std::move(alive));
      check_unchanged(*place, again);
      return again;
    }
    rerun();
    if (torch::autograd::get_current_graph_task_id() != -1) {
      torch::autograd::Engine::get_default_engine().queue_callback([frame = weak_from_this()] {
        if (const auto alive = frame.lock()) alive->clear();
      });
    }
  }
  // Memory falls as backward goes on, with retain_graph too: a later pass runs the function again.
  at::Tensor tensor = std::exchange(place->tensor, at::Tensor());
  if (!tensor.defined()) {
    throw Error(
        "checkpoint: the function left before it saved what backward asks for: it must compute the same both times" +
        debug_words());
  }
  check_unchanged(*place, tensor);
  place->last = c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr());
  return tensor;
}

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

void RerunFrame::forward_is_over() noexcept {
  State& s = *state_;
  if (s.running) return;
  s.forward_over = true;
  for (const State::Recent& r : std::exchange(s.recent, {})) {
    try {
      is_final(*r.place, r.tensor, r.index);
    } catch (...) {  // no memory for a copy: it goes unchecked
    }
  }
}

const std::shared_ptr<RerunFrame>& innermost_rerun_frame() {
  const bool innermost = t_frame && record::recording_tape().get() == t_tape_of_frame &&
                         torch::autograd::get_current_graph_task_id() == t_task_of_frame;
  return innermost ? t_frame : kNone;
}

}  // namespace replay
}  // namespace snug
