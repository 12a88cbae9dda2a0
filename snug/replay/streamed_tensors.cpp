#include "snug/replay/streamed_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/byte_tensor.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/tier_full.h"
#include "snug/record/operator_traits.h"
#include "snug/record/view.h"

namespace snug {
namespace {

using Uses = c10::SmallVector<plan::StreamedUse, 4>;

constexpr int kNoBackward = -1;

/// Those among an operator's tensors that the window has, each once.
Uses used_by(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const replay::StreamWindow& window) {
  Uses uses;
  const record::OperatorTraits& traits = record::traits_of(op);
  if (traits.reads == record::OperatorTraits::Reads::Nothing) return uses;
  const c10::IValue* const arguments = record::arguments_on(stack, traits);
  for (std::size_t i = 0; i < traits.arguments.size(); ++i) {
    record::for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      const auto* const ownership = memory::ownership_of(*tensor.storage().unsafeGetStorageImpl());
      if (ownership == nullptr || ownership->owner.get() != &window) return;
      using Does = plan::StreamedUse::Does;
      const Does does = record::writes(traits, arguments, i) ? Does::Writes : Does::Reads;
      const auto known = std::ranges::find(uses, ownership->which, &plan::StreamedUse::tensor);
      if (known == uses.end()) {
        uses.push_back({ownership->which, does});
      } else {
        known->does = std::max(known->does, does);
      }
    });
  }
  return uses;
}

/// What optimizers keep of a parameter most often begins so, in their first step: not in a forward or a backward pass.
bool makes_state(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const replay::StreamWindow& window) {
  const record::OperatorTraits& traits = record::traits_of(op);
  if (traits.name != "aten::zeros_like" || record::recording_tape() ||
      torch::autograd::get_current_graph_task_id() != kNoBackward)
    return false;
  const c10::IValue& like = *record::arguments_on(stack, traits);
  const auto* const ownership = like.isTensor() && like.toTensor().has_storage()
                                    ? memory::ownership_of(*like.toTensor().storage().unsafeGetStorageImpl())
                                    : nullptr;
  return ownership != nullptr && ownership->owner.get() == &window;
}

/// It goes where the parameter is, if there is room.
void stream_too(replay::StreamWindow& window, const torch::jit::Stack& results, Bytes at_least) {
  if (results.empty() || !results.back().isTensor()) return;  // it has failed
  const at::Tensor& made = results.back().toTensor();
  if (!made.defined() || !record::is_plain(made) || made.device() != window.device() ||
      static_cast<Bytes>(made.storage().nbytes()) < at_least || memory::has_owner(made))
    return;
  window.add_if_there_is_room(made.storage());
}

record::OperatorGate::Calls around_operators(std::shared_ptr<replay::StreamWindow> window, Bytes at_least) {
  return {.around = [window = std::move(window), at_least](
                        const c10::OperatorHandle& op, const torch::jit::Stack& stack) -> record::OperatorGate::Over {
    if (makes_state(op, stack, *window))
      return [window, at_least, results = &stack] { stream_too(*window, *results, at_least); };
    Uses uses = used_by(op, stack, *window);
    if (uses.empty()) return {};
    window->begin(uses);
    return [window, uses = std::move(uses)] { window->end(uses); };
  }};
}

c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak(const at::Tensor& tensor) {
  return c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr());
}

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  Bytes all = 0;
  for (const at::Tensor& t : tensors) all += t.defined() ? static_cast<Bytes>(t.nbytes()) : 0;
  return all;
}

/// Storages that have become another device's, each once: what shares one shares it there.
class MovedStorages {
 public:
  void move(const at::Tensor& tensor, c10::Device device) {
    const at::NoGradGuard no_grad;
    const c10::Storage& from = tensor.storage();
    const auto [known, first] = there_.try_emplace(from.unsafeGetStorageImpl(), Moved{from, {}});
    if (first) known->second.there = memory::byte_tensor(from, static_cast<Bytes>(from.nbytes())).to(device).storage();
    const at::Tensor moved = at::empty({0}, tensor.options().device(device).requires_grad(false))
                                 .set_(known->second.there, tensor.storage_offset(), tensor.sizes(), tensor.strides());
    at::Tensor(tensor).set_data(moved);
  }

 private:
  struct Moved {
    c10::Storage from, there;
  };
  std::unordered_map<const c10::StorageImpl*, Moved> there_;
};

}  // namespace

StreamedTensors::StreamedTensors(StreamOptions options)
    : StreamedTensors(options, std::make_shared<memory::Tiers>(
                                   memory::TierBudgets{.host = options.host_budget, .disk = options.disk_budget})) {}

StreamedTensors::StreamedTensors(StreamOptions options, std::shared_ptr<memory::Tiers> tiers)
    : options_(options), tiers_(std::move(tiers)) {
  if (options_.device) options_.device = memory::with_index(*options_.device);
  options_.min_bytes = std::max<Bytes>(options_.min_bytes, 1);  // there is no place of none
}

StreamedTensors::~StreamedTensors() {
  try {
    bring_back();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): there is not the memory
  }
}

void StreamedTensors::add(const std::vector<at::Tensor>& tensors) {
  forget_gone();
  MovedStorages moved;
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || !record::is_plain(t) || static_cast<Bytes>(t.storage().nbytes()) < options_.min_bytes) continue;
    if (memory::has_owner(t)) continue;
    if (options_.device && t.device() != *options_.device) moved.move(t, *options_.device);
    if (memory::has_owner(t)) continue;  // as what shares its storage has left
    begin_on(t.device());
    try {
      window_->add(t.storage());
    } catch (const memory::TierFull& full) {
      throw memory::TierFull(fmt::format("stream: {} tensors of {} in all do not find room: {}", tensors.size(),
                                         format_bytes(bytes_of(tensors)), full.what()));
    }
  }
}

void StreamedTensors::begin_on(c10::Device device) {
  if (!window_) {
    window_ = std::make_shared<replay::StreamWindow>(device, tiers_);
    gate_.emplace(around_operators(window_, options_.min_bytes));
  }
  if (device == window_->device()) return;
  throw UsageError(fmt::format(
      "stream: a tensor is of {}, and those before it are of {}; set StreamOptions::device, to have all there, or "
      "give each device StreamedTensors of its own",
      device.str(), window_->device().str()));
}

void StreamedTensors::add_with_room(const at::Tensor& tensor, std::unique_ptr<memory::ContentsRoom> room) {
  if (!record::is_plain(tensor) || memory::has_owner(tensor) ||
      static_cast<Bytes>(tensor.storage().nbytes()) != room->bytes())
    throw std::logic_error("StreamedTensors::add_with_room: the tensor is not alone in a storage of its own");
  begin_on(tensor.device());
  window_->add(tensor.storage(), std::move(room));
}

void StreamedTensors::forget_copies() {
  if (window_) window_->forget_copies();
}

void StreamedTensors::take_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!window_ || !parameter.has_storage() || !gradient.defined() || !record::is_plain(gradient)) return;
  const auto* const ownership = memory::ownership_of(*parameter.storage().unsafeGetStorageImpl());
  if (ownership == nullptr || ownership->owner != window_ || memory::has_owner(gradient)) return;
  if (!window_->takes_gradients(ownership->which)) return;
  const auto bytes = static_cast<Bytes>(gradient.storage().nbytes());
  if (gradient.device() != window_->device() || gradient.storage().use_count() > 1 || bytes < options_.min_bytes)
    return;
  auto known = gradients_.find(parameter.unsafeGetTensorImpl());
  if (known != gradients_.end() && (known->second.of.expired() || known->second.bytes != bytes)) {
    window_->give_up_reserved(known->second.which);
    gradients_.erase(known);
    known = gradients_.end();
  }
  if (known == gradients_.end()) {
    const auto reserved = [&] {
      try {
        return window_->reserve(bytes);
      } catch (const memory::TierFull& full) {
        throw memory::TierFull(fmt::format(
            "stream: gradients, which take as much as what they are of, do not find room: {}", full.what()));
      }
    };
    known =
        gradients_.try_emplace(parameter.unsafeGetTensorImpl(), Gradients{weak(parameter), reserved(), bytes}).first;
  }
  if (window_->is_free(known->second.which, bytes)) window_->give(gradient.storage(), known->second.which);
}

/// Of parameters that are gone nobody has gradients any more.
void StreamedTensors::forget_gone() {
  std::erase_if(gradients_, [&](const auto& known) {
    if (!known.second.of.expired()) return false;
    window_->give_up_reserved(known.second.which);
    return true;
  });
}

void StreamedTensors::bring_back() {
  gradients_.clear();
  window_to_be_ = {};
  if (window_) window_->bring_back();
}

void StreamedTensors::open(plan::Window window) {
  if (window_) window_->open(window);
  window_to_be_ = window;
}

void StreamedTensors::try_out(plan::Window window) {
  if (window_) window_->open(window);
}

void StreamedTensors::reopen() {
  if (window_ && window_->window() != window_to_be_) window_->open(window_to_be_);
}

void StreamedTensors::next_step(replay::StepKind kind) {
  if (window_) window_->next_step(kind);
}

replay::StreamWindow::Totals StreamedTensors::totals() const {
  return window_ ? window_->totals() : replay::StreamWindow::Totals();
}

namespace replay {

WindowAfterFailure::~WindowAfterFailure() {
  if (streamed_ == nullptr || std::uncaught_exceptions() == exceptions_) return;
  try {
    if (streamed_->window() && streamed_->window()->window() != before_) streamed_->open(before_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): without the memory for it it is as it is
  }
}

}  // namespace replay

}  // namespace snug
