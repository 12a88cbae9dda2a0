#include "snug/replay/packed_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <string>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "snug/memory/swallowed_refusal.h"
#include "snug/record/contents_hash.h"
#include "snug/replay/executor.h"

namespace snug::replay {

using record::Tape;

namespace {

[[noreturn]] void refuse(const std::string& tensor, const record::SeenVersion& version) {
  throw Error(fmt::format(
      "backward: {}, which an operator saved for its gradient, was modified in place since (version {} then, {} now): "
      "the gradient would be wrong; modify it after backward, or a clone of it",
      tensor, version.seen(), version.now()));
}

}  // namespace

PackedTensor::PackedTensor(std::shared_ptr<record::Tape> tape, const at::Tensor& tensor)
    : tape_(std::move(tape)), on_tape_(tape_->save(tensor, saved_)), consumed_in_(record::kNoPass) {
  if (on_tape_) return;
  kept_version_ = record::SeenVersion(tensor);
  wrapped_ = unwrapped(tensor);
  if (!wrapped_) {
    kept_ = tensor.detach();  // not the variable itself: it would keep its own graph alive
    return;
  }
  for (const at::Tensor& inside : std::exchange(wrapped_->inside, {}))
    inside_.push_back(std::make_unique<PackedTensor>(tape_, inside));
}

PackedTensor::~PackedTensor() {
  if (on_tape_) tape_->forget(saved_, consumed_in_);
}

at::Tensor PackedTensor::unpack() {
  memory::rethrow_swallowed_refusal();  // of the node before
  if (!on_tape_) {
    // LibTorch leaves that to those who have hooks.
    if (kept_version_.raised())
      refuse(wrapped_ ? "a tensor" : fmt::format("a tensor of shape [{}]", fmt::join(kept_.sizes(), ", ")),
             kept_version_);
    return wrapped_ ? wrap_again() : kept_;
  }
  const PatientLock lock(tape_->mutex());
  if (!saved_.bound) tape_->bind_all();
  record::ValueStore& values = tape_->values();
  const plan::ValueId value = saved_.view.value;
  check_version(value);
  tape_->asked_by_backward(value);
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass != record::kNoPass && consumed_in_ == pass && saved_.handed_out.defined())
    return saved_.handed_out;  // a node that looks a second time sees what it has written
  if (pass != record::kNoPass && values.enter_pass(pass)) {
    torch::autograd::Engine::get_default_engine().queue_callback([tape = std::weak_ptr(tape_), pass] {
      if (const auto alive = tape.lock()) alive->leave_pass(pass);
    });
    tape_->begin_fetching_ahead();
  }
  if (const plan::OpId producer = tape_->flow().producer(value); producer != plan::kNoOp) tape_->move_to(producer);
  const c10::Storage storage = contents();
  tape_->streams().catch_up(values.device(value));
  tape_->streams().used(storage.unsafeGetStorageImpl());
  at::Tensor tensor = tape_->hand_out(saved_, storage);
  if (pass == record::kNoPass) {
    values.end_pass();  // somebody looks at a saved tensor outside of backward
  } else if (consumed_in_ != pass) {
    consumed_in_ = pass;
    values.consume(value, saved_.stands_for);
  }
  if (pass != record::kNoPass && tape_->finished()) fetch_ahead(*tape_);  // while the node computes
  const bool absent = values.residency(value, saved_.stands_for) == plan::Residency::Absent;
  // Where the graph is kept, what the tape has dropped is to be free, and is recomputed for the next pass.
  const bool is_kept = torch::autograd::get_current_graph_task_keep_graph();
  const bool is_programs = saved_.written || storage.unsafeGetStorageImpl() == values.address(value);
  if (pass != record::kNoPass && !(absent && is_kept)) {
    saved_.handed_out = tensor;
  } else if (pass != record::kNoPass && is_programs) {
    tape_->hold_for_pass(pass, tensor);
  }
  tape_->observers().tell_recording(&record::TapeObserver::unpacked, value);
  return tensor;
}

at::Tensor PackedTensor::original(const at::Tensor& unpacked) const {
  if (!on_tape_) return {};
  const PatientLock lock(tape_->mutex());
  if (at::Tensor same = tape_->original_of(saved_); same.defined()) return same;
  // Of parameters that share a storage another may have been written since, which made a value of its own of all of it.
  const at::Tensor parameter(saved_.tensor.lock());
  const bool is_parameter = parameter.defined() && parameter.is_leaf() && parameter.requires_grad() &&
                            saved_.stands_for == record::StandsFor::Value &&
                            tape_->calls().geometry().shows(saved_.view, parameter);
  return is_parameter && record::contents_hash(parameter) == record::contents_hash(unpacked) ? parameter : at::Tensor();
}

at::Tensor PackedTensor::wrap_again() {
  std::vector<at::Tensor> inside;
  for (const auto& packed : inside_) inside.push_back(packed->unpack());
  return wrapped_->wrap(inside);
}

c10::Storage PackedTensor::contents() {
  if (saved_.written) return saved_.written;
  const plan::ValueId value = saved_.view.value;
  record::ValueStore& values = tape_->values();
  if (saved_.stands_for == record::StandsFor::Image) {
    const record::StreamOrder::Scope decodes(tape_->streams());
    tape_->streams().enter(values.device(value));
    return values.images().contents(value);
  }
  // If the program still has the storage, use it: dropping the value freed nothing, and plain autograd would read
  // writes that were not recorded, which a replay or a moved copy does not have.
  if (c10::Storage storage = values.programs_storage(value)) {
    try {
      if (values.ledger().cached(value)) (void)tape_->asked_for(value);
    } catch (const Error&) {  // a moved copy cannot be read, and is not needed
      if (values.ledger().cached(value)) values.evict(value);
    }
    return storage;
  }
  do {
    if (values.ledger().resident(value) && !tape_->drop_if_spoilt(value)) continue;
    if (!tape_->finished()) tape_->notice_writes();
    materialize(*tape_, value);
  } while (!tape_->asked_for(value));
  return values.storage(value);
}

void PackedTensor::check_version(plan::ValueId value) const {
  if (!saved_.version.raised()) {
    if (!saved_.written_over) return;
    throw Error(fmt::format(
        "backward: {}, which an operator saved for its gradient, was modified in place since, in a way that its "
        "version does not tell, as through `.data`: the gradient would be wrong; modify it after backward, or a "
        "clone of it",
        tape_->lookup().name_of(value)));
  }
  refuse(tape_->lookup().name_of(value), saved_.version);
}

}  // namespace snug::replay
