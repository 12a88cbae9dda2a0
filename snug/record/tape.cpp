#include "snug/record/tape.h"

#include <atomic>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "snug/memory/out_of_budget.h"
#include "snug/plan/run/staging.h"
#include "snug/record/encodings.h"
#include "snug/record/want_of_room.h"

namespace snug::record {

namespace {

std::atomic<int> s_alive = 0;

}  // namespace

Tape::Tape(Policy policy, std::shared_ptr<TapeObserver> observer) : follower_(std::move(policy)) {
  ++s_alive;
  if (follower_.keeps_nothing()) values_.hold_no_leaves();
  if (observer) observers_.add(std::move(observer));
}

Tape::~Tape() { --s_alive; }

int Tape::alive() noexcept { return s_alive; }

/// The step's first operator, or region, is about to begin.
void Tape::decide() {
  const DecideLater* later = follower_.undecided();
  if (later == nullptr) return;
  DecideLater::Decision decision = later->decide();
  const PatientLock lock(mutex_);
  if (decision.observer) observers_.add(std::move(decision.observer));
  follower_.decide(std::move(decision.policy));
}

void Tape::add_observer(std::shared_ptr<TapeObserver> observer) {
  const PatientLock lock(mutex_);
  observers_.add(std::move(observer));
}

void Tape::remove_observer(const TapeObserver& observer) noexcept {
  const PatientLock lock(mutex_);
  observers_.remove(observer);
}

void Tape::detach() noexcept {
  const PatientLock lock(mutex_);  // other threads may be telling them
  observers_.remove_measuring();
  follower_.give_up_deciding();
}

void Tape::open_region(RegionTerms terms) {
  decide();
  const PatientLock lock(mutex_);
  bind_all();
  if (planned()) {
    regions_.open_in_plan(std::move(terms));
  } else {
    regions_.open(values_.flow(), std::move(terms));
  }
}

void Tape::close_region() {
  const PatientLock lock(mutex_);
  bind_all();
  regions_.close();
}

void Tape::finish() {
  decide();
  const PatientLock lock(mutex_);
  bind_all();
  follower_.finish(calls_);
  values_.all_gone();
  notice_writes();
  streams_.forward_over();
  // From now on versions are asked only of what is held as the program has it.
  for (plan::ValueId v = 0; v < flow().values(); ++v) {
    if (!flow().is_leaf(v)) versions_.look_again(v);
  }
  observers_.tell_recording(&TapeObserver::settle_begins, *this);
  values_.settle(planned() ? plan::Leaves::Stay : plan::Leaves::Go);  // those may be evicted later
  observers_.tell(&TapeObserver::settle_ends);
}

void Tape::written_elsewhere(c10::StorageImpl* storage) {
  const PatientLock lock(mutex_);
  if (outer_ != nullptr) outer_->written_elsewhere(storage);
  bind_all();
  const plan::ValueId value = values_.in(storage);
  if (value == plan::kNoValue) return;
  if (ledger().fetchable(value)) {  // its contents are elsewhere
    values_.gone(value);
    if (ledger().fetchable(value)) return values_.forget_storage(storage);
  }
  // As of weights that are updated behind backward.
  if (finished() && !ledger().needed(value)) return values_.forget_storage(storage);
  // A finished tape may have let go of what would recompute it.
  const bool is_copied = flow().is_leaf(value) || finished();
  // First: if there is no memory for the copy, the program may free some and run the operator again.
  if (is_copied && values_.in_programs_storage(value)) values_.copy_before_write(value);
  values_.forget_storage(storage);
  if (is_copied) return;
  if (unsharded_.is_kept(value)) keep_what_is_made_of(value);
  lookup_.displace(value);
}

// --- what is held --------------------------------------------------------------------------------------------------

bool Tape::escapes(plan::ValueId value) const {
  return follower_.known_step() == nullptr && regions_.escapes(flow(), value);
}

bool Tape::keeps_when_saved(plan::ValueId value) const {
  if (flow().is_leaf(value)) return true;
  if (follower_.known_step() != nullptr) return false;  // held at birth, or not at all
  return regions_.keeps_when_saved(flow(), value, values_.must(value));
}

/// A replay will need it: it is held, or goes away.
void Tape::keep(plan::ValueId value, const c10::Storage& storage) {
  if (const auto how = values_.away(value)) {
    try {
      return put_away(value, storage, *how);
    } catch (...) {
      // A planned step goes on where there is no room, and drops the value where memory runs out. Else it is a failure
      // of the operator that runs, if any.
      if (follower_.known_step() == nullptr || !is_want_of_room(std::current_exception()))
        failure_ = std::current_exception();
    }
  }
  values_.hold(value, storage);
}

void Tape::put_away(plan::ValueId value, const c10::Storage& storage, plan::Action how) {
  const KnownStep* known = follower_.known_step();
  if (!plan::is_compressed(how)) {
    OnTheWay on_the_way{.bytes = planned_bytes(value)};
    if (known != nullptr) {
      on_the_way.to = how.home == plan::Home::Disk ? memory::Tier::Disk : memory::Tier::Host;
      on_the_way.most = known->plan->staging.leaving;
    }
    return values_.offload(value, storage, on_the_way);
  }
  const plan::Encoding* const encoding = planned_encoding(value, how.codec);
  // Of what is lossy there would be an image, if there could be one.
  if (encoding == nullptr || plan::is_lossy(how)) return values_.hold(value, storage);
  values_.compress(value, storage, *encoding);
}

/// Of the known step that this one is now, which need not be the one whose plan said so: nullptr where that has none.
const plan::Encoding* Tape::planned_encoding(plan::ValueId value, plan::Codec codec) const {
  const KnownStep* known = follower_.known_step();
  if (known == nullptr || plan::at(value) >= known->graph->values.size()) return nullptr;
  return plan::find_encoding(known->graph->values[plan::at(value)].encodings, codec);
}

Bytes Tape::planned_bytes(plan::ValueId value) const {
  const KnownStep* known = follower_.known_step();
  return known != nullptr && plan::at(value) < known->graph->values.size() ? known->graph->step_bytes(value)
                                                                           : values_.nbytes(value);
}

// --- replay --------------------------------------------------------------------------------------------------------

/// Of moved contents that `read` reads, or waits for.
template <class Read>
bool Tape::readable(plan::ValueId value, const Read& read) {
  try {
    read();
    return true;
  } catch (const Error&) {
    if (memory::refusal_in(std::current_exception()) || !values_.do_without(value)) throw;
    return ledger().resident(value);
  }
}

bool Tape::load(plan::ValueId value) {
  c10::Storage storage;
  const auto fetch = [&] {
    storage = values_.fetch(value);
    if (verified_.compares(value)) values_.arrived(value);
  };
  if (!readable(value, fetch)) return false;
  if (ledger().resident(value)) return true;  // where it was, as it has not left
  put(value, std::move(storage));
  return true;
}

void Tape::begin_fetching_ahead() {
  const KnownStep* known = follower_.known_step();
  prefetch_ = plan::Prefetch(known != nullptr ? plan::staging_of(*known->graph, *known->plan) : plan::Staging());
}

bool Tape::asked_for(plan::ValueId value) {
  prefetch_.asked_for(value);
  return readable(value, [&] { values_.arrived(value); });
}

void Tape::replayed(plan::OpId op) {
  ++replayed_ops_;
  observers_.tell(&TapeObserver::replayed, *this, op);
}

void Tape::put(plan::ValueId value, c10::Storage storage) {
  verified_.check(value, storage);
  values_.cache(value, std::move(storage));
}

/// Remembers a value that is about to be dropped. Its contents may still be arriving from the host or a disk.
void Tape::remember_contents(plan::ValueId value) {
  try {
    values_.arrived(value);
  } catch (...) {  // they could not be read: there is nothing to compare with
    return;
  }
  streams_.wait_for_all(values_.device(value));
  verified_.remember(value, values_.storage(value));
}

Bytes Tape::evict(plan::ValueId value) {
  if (const Bytes compressed = values_.compressed_to(value); compressed > 0) {
    values_.give_up(value);
    observers_.tell(&TapeObserver::evicted, *this, value);
    return compressed;
  }
  observers_.tell_recording(&TapeObserver::evicts, *this, value);
  // What can be fetched again is not recomputed.
  if (verified_.remembers(value) && !ledger().fetchable(value)) remember_contents(value);
  values_.evict(value);
  observers_.tell(&TapeObserver::evicted, *this, value);
  return values_.nbytes(value);
}

void Tape::about_to_be_written(const at::Tensor& tensor) {
  const PatientLock lock(mutex_);
  if (!finished()) return;
  written_elsewhere(tensor.storage().unsafeGetStorageImpl());
  note_written(tensor, Version::MayStay);
}

void Tape::leave_pass(int pass) {
  std::vector<std::pair<int, at::Tensor>> let_go;
  const PatientLock lock(mutex_);
  const auto others =
      std::ranges::stable_partition(saved_.handed_out, [&](const auto& held) { return held.first != pass; });
  let_go.assign(std::make_move_iterator(others.begin()), std::make_move_iterator(others.end()));
  saved_.handed_out.erase(others.begin(), others.end());
  values_.end_pass();
  if (finished()) values_.forget_unneeded();
}

std::optional<plan::ValueId> Tape::resized_leaf() const {
  for (plan::ValueId value = 0; value < flow().values(); ++value) {
    if (values_.resized(value) && !unsharded_.is_weight(value)) return value;
  }
  return std::nullopt;
}

double Tape::seconds(plan::OpId op) const {
  const KnownStep* known = follower_.known_step();
  if (known != nullptr && plan::at(op) < known->graph->ops.size()) return known->graph->ops[plan::at(op)].seconds;
  return calls_.seconds(op);
}

}  // namespace snug::record
