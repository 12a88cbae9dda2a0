#include "tests/plan/run/ledger_world.h"

namespace snug::plan::world {

using Kind = Transition::Kind;
using At = Thread::At;

// --- what callers may do ---------------------------------------------------------------------------------------------

std::vector<Transition> World::legal(const State& s) const {
  const Ledger ledger(
      flow_, [](ValueId) {}, s.books);
  std::vector<Transition> found;
  for (std::int32_t t = 0; t < 2; ++t) add_of_thread(s, t, found);
  for (ValueId v = 0; v < flow_.values(); ++v) add_of_value(s, ledger, v, found);
  // All else takes turns with the operators of replays: while one runs, only evictions and releases come.
  if (std::ranges::any_of(s.threads, [](const Thread& t) { return t.at == At::InOperator; })) return found;
  if (!s.books.settled) add_recording(s, ledger, found);
  if (s.books.settled) found.push_back({Kind::EndPass});
  if (s.books.settled && idle(s) && s.pass + 1 < limits_.passes) found.push_back({Kind::BeginPass});
  return found;
}

void World::add_recording(const State& s, const Ledger& ledger, std::vector<Transition>& found) const {
  if (s.recorded < flow_.ops()) {
    found.push_back({Kind::Record, s.recorded});
  } else {
    found.push_back({Kind::Settle, 0});
    found.push_back({Kind::Settle, 1});
  }
  for (ValueId v = 0; v < flow_.values(); ++v) {
    if (!born(s, v) || in(s.overwritten, v)) continue;  // the program has it
    if (s.waiting.at(at(v)) + s.consumed.at(at(v)) < limits_.saved) found.push_back({Kind::Pack, v});
    if (ledger.fetchable(v)) continue;
    if (!ledger.held(v)) found.push_back({Kind::Hold, v});
    if (limits_.offloads) found.push_back({Kind::Offload, v});
  }
}

void World::add_of_thread(const State& s, std::int32_t thread, std::vector<Transition>& found) const {
  const Thread& t = s.threads.at(at(thread));
  const bool other_runs = s.threads.at(at(1 - thread)).at == At::InOperator;
  switch (t.at) {
    case At::Idle:
      if (other_runs || (!s.books.settled && !limits_.unpacks_while_recording)) break;
      for (ValueId v = 0; v < flow_.values(); ++v) {
        if (free_to_unpack(s, v) > 0) found.push_back({Kind::Unpack, v, thread});
      }
      break;
    case At::BetweenSteps:
      if (other_runs) break;
      found.push_back({t.next < t.replay.steps.size() ? Kind::Step : Kind::Leave, 0, thread});
      break;
    case At::InOperator:
      found.push_back({Kind::Finish, 0, thread});
      found.push_back({Kind::Fail, 0, thread});
      break;
  }
}

void World::add_of_value(const State& s, const Ledger& ledger, ValueId v, std::vector<Transition>& found) const {
  if (ledger.evictable(v, Resort::Last)) {
    const auto seconds = ledger.recovery_seconds([](OpId) { return 1.0; });
    if (ledger.fetchable(v) || std::isfinite(seconds.at(at(flow_.producer(v))))) found.push_back({Kind::Evict, v});
  }
  if (free_to_unpack(s, v) > 0) found.push_back({Kind::Release, v});
  if (s.consumed.at(at(v)) > 0) found.push_back({Kind::ReleaseConsumed, v});
  if (s.books.settled && ledger.fetchable(v) && ledger.useless(v)) found.push_back({Kind::Forget, v});
}

// --- what comes of it ------------------------------------------------------------------------------------------------

State World::after(const State& before, Transition action) const {
  State s = before;
  Set dropped = 0;
  const auto drop = [&](ValueId v) {
    must(in(s.store, v), "dropped though it is not there", v);
    s.store = without(s.store, v);
    dropped = with(dropped, v);
  };
  Ledger ledger(flow_, drop, before.books);
  const ValueId v = action.which;
  Thread& thread = s.threads.at(at(action.thread));
  switch (action.kind) {
    case Kind::Record:
      record(s, ledger, action.which);
      break;
    case Kind::Hold:
      s.store = with(s.store, v);
      ledger.hold(v);
      break;
    case Kind::Offload:
      s.store = without(s.store, v);
      s.elsewhere = with(s.elsewhere, v);
      ledger.offload(v);
      break;
    case Kind::Pack:
      ++s.waiting.at(at(v));
      ledger.pack(v);
      break;
    case Kind::Settle:
      ledger.settle(action.which != 0 ? Leaves::Stay : Leaves::Go);
      break;
    case Kind::Unpack:
      unpack(s, ledger, thread, v);
      break;
    case Kind::Step:
      step(s, ledger, thread);
      break;
    case Kind::Finish:
      finish(s, ledger, thread);
      break;
    case Kind::Fail: {
      ledger.end(std::get<RunAgain>(thread.replay.steps.at(thread.next)));
      ledger.unpin(thread.replay, thread.next);
      thread = Thread();
      break;
    }
    case Kind::Leave:
      leave(s, ledger, thread);
      break;
    case Kind::Evict:
      ledger.evict(v);
      must(in(dropped, v), "evicted and not dropped", v);
      break;
    case Kind::Release:
      --s.waiting.at(at(v));
      ledger.release(v, Unpacked::Not);
      break;
    case Kind::ReleaseConsumed:
      --s.consumed.at(at(v));
      ledger.release(v, Unpacked::Now);
      break;
    case Kind::Forget:
      s.elsewhere = without(s.elsewhere, v);
      ledger.forget(v);
      break;
    case Kind::BeginPass:
      ++s.pass;
      for (std::size_t i = 0; i < kMostValues; ++i) s.waiting.at(i) += std::exchange(s.consumed.at(i), 0);
      ledger.begin_pass();
      break;
    case Kind::EndPass:
      ledger.end_pass();
      break;
  }
  s.books = ledger.state();
  return s;
}

void World::record(State& s, Ledger& ledger, OpId op) const {
  for (const Output& out : flow_.outputs(op)) {
    if (out.overwrites == kNoValue) continue;
    ledger.lose(out.overwrites);
    s.store = without(s.store, out.overwrites);
    s.overwritten = with(s.overwritten, out.overwrites);
  }
  ++s.recorded;
}

void World::unpack(State& s, Ledger& ledger, Thread& thread, ValueId v) const {
  thread.target = v;
  if (!ledger.resident(v)) return schedule(s, ledger, thread);
  thread = Thread();
  --s.waiting.at(at(v));
  ++s.consumed.at(at(v));
  ledger.consume(v);
}

void World::schedule(State& s, Ledger& ledger, Thread& thread) const {
  thread.at = At::BetweenSteps;
  thread.next = 0;
  thread.made = 0;
  thread.absent = ~s.store;
  try {
    thread.replay = ledger.schedule(thread.target);
  } catch (const std::logic_error& error) {
    throw Broken(std::string("lost for ever: ") + error.what());
  }
  must(!thread.replay.steps.empty(), "nothing to do for", thread.target);
  ledger.pin(thread.replay);
}

/// As the executor does: a fetch at once, an operator up to where its kernel runs.
void World::step(State& s, Ledger& ledger, Thread& thread) const {
  const ReplaySchedule::Step& next = thread.replay.steps.at(thread.next);
  if (const auto* fetch = std::get_if<Fetch>(&next)) {
    if (!ledger.resident(fetch->value)) {
      must(in(s.elsewhere, fetch->value), "nowhere to fetch it from", fetch->value);
      s.store = with(s.store, fetch->value);
      ledger.cache(fetch->value);
    }
    ++thread.next;
    return;
  }
  const RunAgain& run = std::get<RunAgain>(next);
  if (!ledger.begin(run)) {  // what it would read has been evicted
    ledger.unpin(thread.replay, thread.next);
    return unpack(s, ledger, thread, thread.target);
  }
  thread.at = At::InOperator;
  for (const Output& out : flow_.outputs(run.op)) {
    if (out.overwrites == kNoValue || !reads(run.op, out.overwrites)) continue;
    if (std::ranges::find(run.copies, out.overwrites) != run.copies.end()) continue;
    must(std::ranges::find(run.drops, out.overwrites) != run.drops.end(), "taken over though it lives on",
         out.overwrites);
    must(!ledger.held(out.overwrites), "taken over though it is held", out.overwrites);
    ledger.lose(out.overwrites);
    s.store = without(s.store, out.overwrites);
  }
}

void World::finish(State& s, Ledger& ledger, Thread& thread) const {
  const RunAgain& run = std::get<RunAgain>(thread.replay.steps.at(thread.next));
  for (const Output& out : flow_.outputs(run.op)) {
    if (in(thread.absent, out.value)) thread.made = with(thread.made, out.value);
    if (ledger.resident(out.value)) continue;
    s.store = with(s.store, out.value);
    ledger.cache(out.value);
  }
  ledger.finish(run);
  ledger.end(run);
  thread.at = At::BetweenSteps;
  ++thread.next;
}

void World::leave(State& s, Ledger& ledger, Thread& thread) const {
  ledger.unpin(thread.replay, thread.replay.steps.size());
  unpack(s, ledger, thread, thread.target);  // or once more, when it has been evicted
}

// --- what must hold --------------------------------------------------------------------------------------------------

void World::check(const State& s) const {
  const Ledger ledger(
      flow_, [](ValueId) {}, s.books);
  const Set need = needed(s, ledger);
  for (ValueId v = 0; v < flow_.values(); ++v) {
    must(ledger.resident(v) == in(s.store, v), "the books and the store differ on", v);
    must(ledger.fetchable(v) == in(s.elsewhere, v), "the books differ on what is elsewhere", v);
    must(ledger.needed(v) == in(need, v), "the books differ on the need of", v);
    must(ledger.packs(v) == s.waiting.at(at(v)) + s.consumed.at(at(v)), "saved tensors of", v);
    must(ledger.waited_for(v) == (s.waiting.at(at(v)) > 0 && !in(s.store, v)), "waiting for", v);
  }
  check_recoverable(s, ledger, need);
  check_pins(s);
  if (s.books.settled) check_uses(s, ledger, need);
  for (const Thread& t : s.threads) {
    if (t.at != At::InOperator) continue;
    const RunAgain& run = std::get<RunAgain>(t.replay.steps.at(t.next));
    const auto outputs = flow_.outputs(run.op);
    for (ValueId v : flow_.inputs(run.op)) {
      const bool written = std::ranges::any_of(outputs, [v](const Output& out) { return out.overwrites == v; });
      must(written || in(s.store, v), "gone while its reader runs", v);
    }
  }
}

Set World::needed(const State& s, const Ledger& ledger) const {
  Set need = 0;
  for (ValueId v = 0; v < flow_.values(); ++v) {
    if (s.waiting.at(at(v)) + s.consumed.at(at(v)) > 0) need = with(need, v);
  }
  if (!s.books.settled) return need;
  for (OpId op = flow_.ops() - 1; op >= 0; --op) {
    int demand = 0;
    for (const Output& out : flow_.outputs(op)) {
      const bool there = ledger.held(out.value) || in(s.elsewhere, out.value);
      if (in(need, out.value) && !there) ++demand;
    }
    must(ledger.demand(op) == demand, "demand of operator", op);
    if (demand == 0) continue;
    for (ValueId v : flow_.inputs(op)) need = with(need, v);
  }
  return need;
}

void World::check_recoverable(const State& s, const Ledger& ledger, Set need) const {
  Set recoverable = 0;
  for (ValueId v = 0; v < flow_.values(); ++v) {
    bool made_again = !flow_.is_leaf(v) && flow_.producer(v) < s.recorded;
    if (made_again) {
      for (ValueId input : flow_.inputs(flow_.producer(v))) made_again = made_again && in(recoverable, input);
    }
    if (ledger.at_hand(v) || made_again) recoverable = with(recoverable, v);
    must(!in(need, v) || in(recoverable, v), "needed and lost for ever", v);
  }
}

/// Pins: what a running operator reads, and what a replay has made and will read, or hand to its caller.
void World::check_pins(const State& s) const {
  for (ValueId v = 0; v < flow_.values(); ++v) {
    std::int32_t pins = 0, wanted = 0;
    for (const Thread& t : s.threads) {
      if (t.at == At::Idle) continue;
      wanted += static_cast<std::int32_t>(std::ranges::count(t.replay.sources, v));
      bool later = v == t.target;
      for (std::size_t i = t.next; i < t.replay.steps.size(); ++i) {
        const auto* run = std::get_if<RunAgain>(&t.replay.steps[i]);
        later = later || (run != nullptr && reads(run->op, v));
      }
      if (in(t.made, v) && later) ++pins;
      if (t.at != At::InOperator) continue;
      pins += static_cast<std::int32_t>(
          std::ranges::count(flow_.inputs(std::get<RunAgain>(t.replay.steps.at(t.next)).op), v));
    }
    const LedgerState::Entry& entry = s.books.values.at(at(v));
    must(entry.pins == pins, "pins", v);
    must(entry.wanted == wanted, "replays that want", v);
  }
}

/// Nothing is there without a use.
void World::check_uses(const State& s, const Ledger& ledger, Set need) const {
  for (ValueId v = 0; v < flow_.values(); ++v) {
    if (!in(s.store, v)) continue;
    const LedgerState::Entry& entry = s.books.values.at(at(v));
    if (entry.pins > 0 || entry.wanted > 0) continue;
    const bool stays = s.books.keep_leaves && flow_.is_leaf(v);
    must(in(need, v) || stays, "there without a use", v);
  }
  if (!over(s)) return;
  for (OpId op = 0; op < flow_.ops(); ++op) must(ledger.demand(op) == 0, "demand is left of", op);
}

State World::alone(State s, std::int32_t thread) const {
  constexpr int kMostSteps = 20;
  for (int i = 0; i < kMostSteps && s.threads.at(at(thread)).at != At::Idle; ++i) {
    std::vector<Transition> next;
    add_of_thread(s, thread, next);
    if (next.empty()) return s;  // the other one is in an operator
    s = after(s, next.front());
  }
  must(s.threads.at(at(thread)).at == At::Idle, "does not get on alone: thread", thread);
  return s;
}

void World::check_progress(const State& s) const {
  for (std::int32_t thread = 0; thread < 2; ++thread) (void)alone(s, thread);
  if (!idle(s) || !s.books.settled) return;
  for (ValueId target = 0; target < flow_.values(); ++target) {
    if (s.waiting.at(at(target)) == 0 || in(s.store, target)) continue;
    const State done = alone(after(s, {Kind::Unpack, target}), 0);
    must(done.waiting.at(at(target)) + 1 == s.waiting.at(at(target)), "not unpacked", target);
    for (ValueId v = 0; v < flow_.values(); ++v) {
      // Inputs of a nested segment stay for its turn.
      if (in(done.store, v) && !in(s.store, v) && !segmented())
        must(done.waiting.at(at(v)) > 0, "made again for nobody", v);
    }
  }
}

std::string World::key(const State& s) {
  std::string key;
  const auto add = [&key](std::int64_t number) { key.push_back(static_cast<char>(number)); };
  const auto add_all = [&](std::span<const ValueId> values) {
    add(static_cast<std::int64_t>(values.size()));
    for (ValueId v : values) add(v);
  };
  for (const LedgerState::Entry& e : s.books.values) {
    for (std::int64_t n : {e.packs, e.pending, e.readers, e.pins, e.wanted}) add(n);
    add(static_cast<std::int64_t>(e.residency) * 2 + static_cast<std::int64_t>(e.source));
  }
  for (std::int32_t demand : s.books.demand) add(demand);
  add((s.books.settled ? 1 : 0) + (s.books.keep_leaves ? 2 : 0));
  for (std::int64_t n : {std::int64_t{s.store}, std::int64_t{s.elsewhere}, std::int64_t{s.overwritten},
                         std::int64_t{s.recorded}, std::int64_t{s.pass}})
    add(n);
  for (std::size_t i = 0; i < kMostValues; ++i) add(s.waiting.at(i) * 16 + s.consumed.at(i));
  const std::string shared = std::exchange(key, {});
  std::array<std::string, 2> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    const Thread& t = s.threads.at(i);
    if (t.at != At::Idle) {
      for (std::int64_t n : {static_cast<std::int64_t>(t.at), std::int64_t{t.target}, static_cast<std::int64_t>(t.next),
                             std::int64_t{t.made & 0xFU}, std::int64_t{t.absent & 0xFU}})
        add(n);
      add_all(t.replay.sources);
      for (const ReplaySchedule::Step& step : t.replay.steps) {
        const auto* run = std::get_if<RunAgain>(&step);
        add(run != nullptr ? run->op : -1 - std::get<Fetch>(step).value);
        if (run == nullptr) continue;
        for (const auto* list : {&run->drops, &run->copies, &run->read_later, &run->read_last}) add_all(*list);
      }
    }
    threads.at(i) = std::exchange(key, {});
  }
  // Which thread does what makes no difference.
  if (threads[1] < threads[0]) std::swap(threads[0], threads[1]);
  return shared + '\x7f' + threads[0] + '\x7f' + threads[1];
}

}  // namespace snug::plan::world
