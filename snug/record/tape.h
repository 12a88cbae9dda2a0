#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/offloaded.h"
#include "snug/plan/run/ledger.h"
#include "snug/plan/step/dataflow.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/segments.h"
#include "snug/plan/step/step_graph.h"
#include "snug/record/call.h"
#include "snug/record/random_state.h"
#include "snug/record/remembered.h"
#include "snug/record/saved_counts.h"
#include "snug/record/seen_version.h"
#include "snug/record/selective.h"
#include "snug/record/tape_mutex.h"
#include "snug/record/view.h"

namespace snug::record {

class Profiler;
class Tape;

/// What a tape holds of the values that regions say nothing about.
struct KeepSaved {};  ///< whatever autograd saves, as PyTorch does
/// A step that was recorded before, and its plan.
struct KnownStep {
  std::shared_ptr<const plan::MemoryPlan> plan;
  std::shared_ptr<const plan::StepGraph> graph;
};
/// What the first plan says, as long as the step is the one that it is for; then what another one says whose step began
/// in the same way; and what autograd saves when there is none.
struct FollowPlan {
  std::vector<KnownStep> steps;  ///< not empty
};
/// Either of those, as `decide` says when the step's first operator runs: then it shows whether gradients are there.
struct DecideLater {
  struct Decision {
    std::variant<KeepSaved, FollowPlan> policy;
    Profiler* profiler = nullptr;
  };
  std::function<Decision()> decide;  ///< may throw; is asked again then
};
using Policy = std::variant<KeepSaved, FollowPlan, DecideLater>;

/// What a saved-tensor hook packed: a view of a value, bound to the version that stands when the operator around the
/// pack has finished.
struct SavedTensor {
  View view;
  c10::Storage storage;  // until it is bound
  SeenVersion version;   // when it was packed
  bool bound = false;
};

/// Contents that no recorded operator made: they cannot be made again, and are kept.
struct Opaque {
  enum class Case : std::uint8_t {
    Filled,      ///< what the operator handed out was filled
    WrittenOver  ///< its result was written over
  };
  std::string operation;  ///< its name, number and module
  Bytes bytes = 0;
  Case what = Case::Filled;
};

/// Where a step first differed from its plan.
struct Divergence {
  plan::OpId op = 0;
  std::string expected;
  std::string found;
};

/// The operators that ran on one thread, and the values they read and wrote: enough to run any of them again with
/// bitwise the same result. Values are contents of storages by version; views are geometry over them. The tape holds
/// leaves (values that no recorded operator made) and whatever its policy and its regions keep; everything else can
/// be made again from them.
///
/// record() is called by the recording thread only. Saved tensors may be unpacked and destroyed on other threads, and
/// any thread may evict: every function takes the tape's mutex, which is lent to evictions while a kernel runs.
class Tape {
 public:
  explicit Tape(Policy policy, Profiler* profiler = nullptr);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // --- recording ---------------------------------------------------------------------------------------------------

  /// Runs the call on `stack` under `keys` and records it.
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);

  /// Values born until close_region() are dropped (recompute) or kept, or as the policy says. Regions nest, the
  /// innermost wins. A value that leaves a region which drops it is kept, unless an enclosing region can make it again.
  /// What is to be offloaded and is smaller than `min_offload` is kept. In a planned step (see planned) only what a
  /// policy says must be counts.
  void open_region(bool recompute, SelectivePolicy policy = {}, Bytes min_offload = 0);
  void close_region();
  /// Whether a plan decides, or will be made from this recording.
  [[nodiscard]] bool planned() const noexcept { return profiler_ != nullptr || planned_segments_.has_value(); }

  /// A saved tensor begins; its address must stay until forget(). Returns false when the tensor cannot be on a tape
  /// (see is_plain): keep the tensor itself.
  bool save(const at::Tensor& tensor, SavedTensor& saved);
  /// The saved tensor ends, which a backward pass has unpacked, or none (kNoPass).
  void forget(SavedTensor& saved, int unpacked_in);
  /// Binds all saved tensors that still wait for their operator.
  void bind_all();
  /// Lets go of results that something unseen has written over, so that they are made again where they are read.
  void notice_writes();

  /// Another tape, which hides this one, is about to record a write: what was known of the storage no longer holds.
  void written_elsewhere(c10::StorageImpl* storage);
  /// The tape that this one hides while it records, or nullptr.
  void set_outer(Tape* outer) noexcept { outer_ = outer; }

  /// The recording is over: what nothing needs is dropped.
  void finish();
  [[nodiscard]] bool finished() const noexcept { return ledger_.settled(); }

  /// From now on the contents of what is dropped are remembered, and compared when they are made again: a replay that
  /// makes other bits throws Error, naming the operator, its module and the place.
  void verify_replays(VerifyReplay how) noexcept { verify_ = how; }

  /// Called with each output of every recorded operator, when it runs and when it runs again. May throw.
  using Watch = std::function<void(plan::OpId op, const at::Tensor& output, bool again)>;
  void set_watch(Watch watch) { watch_ = std::move(watch); }
  [[nodiscard]] const Watch& watch() const noexcept { return watch_; }
  /// The operator that autograd gave this sequence number to, or kNoOp; for tapes that are watched.
  [[nodiscard]] plan::OpId op_of_sequence(std::uint64_t number) const;

  // --- replay ------------------------------------------------------------------------------------------------------

  [[nodiscard]] TapeMutex& mutex() const noexcept { return mutex_; }
  [[nodiscard]] const plan::Dataflow& flow() const noexcept { return flow_; }
  [[nodiscard]] plan::Ledger& ledger() noexcept { return ledger_; }
  [[nodiscard]] const plan::Ledger& ledger() const noexcept { return ledger_; }
  [[nodiscard]] const Call& call(plan::OpId op) const { return calls_[static_cast<std::size_t>(op)]; }
  [[nodiscard]] const Argument& argument(const Call& call, std::size_t i) const {
    return arguments_[static_cast<std::size_t>(call.arguments) + i];
  }
  [[nodiscard]] const OutputSlot& output_slot(const Call& call, std::size_t i) const {
    return slots_[static_cast<std::size_t>(call.outputs) + i];
  }
  [[nodiscard]] const View& view(std::int32_t index) const { return views_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const c10::IValue& constant(std::int32_t index) const {
    return constants_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] const RandomState& random_state(const Call& call) const {
    return random_states_[static_cast<std::size_t>(call.random)];
  }
  [[nodiscard]] const GeometryPool& geometry() const noexcept { return geometry_; }

  /// The storage of a resident value.
  [[nodiscard]] const c10::Storage& storage(plan::ValueId value) const {
    return values_[static_cast<std::size_t>(value)].storage;
  }
  /// The executor made the value again. It stays until the ledger drops it.
  void put(plan::ValueId value, c10::Storage storage);
  /// Fetches an offloaded value, as if the executor had made it. Throws Error when it cannot be read.
  void load(plan::ValueId value);
  /// The executor took the storage of a value over for an in-place operator.
  c10::Storage take(plan::ValueId value);
  /// What a policy said of it.
  [[nodiscard]] plan::Must must(plan::ValueId value) const { return values_[static_cast<std::size_t>(value)].must; }
  [[nodiscard]] Bytes nbytes(plan::ValueId value) const { return values_[static_cast<std::size_t>(value)].nbytes; }
  [[nodiscard]] c10::Device device(plan::ValueId value) const {
    return values_[static_cast<std::size_t>(value)].device;
  }

  /// The path of ModuleScope in which the operator ran.
  [[nodiscard]] const std::string& module_of(plan::OpId op) const {
    return module_names_[static_cast<std::size_t>(modules_[static_cast<std::size_t>(op)])];
  }
  /// What error messages call an operator: its name, module and number.
  [[nodiscard]] std::string describe(plan::OpId op) const;
  /// Types and sizes of the tensors that a recorded call takes, for messages.
  [[nodiscard]] std::string inputs_of(const Call& call) const;
  /// What error messages call a value.
  [[nodiscard]] std::string name_of(plan::ValueId value) const;

  /// A backward pass, told apart by its id, unpacks from the tape. Returns whether it is a new one.
  bool enter_pass(int id);
  void leave_pass();
  static constexpr int kNoPass = -1;

  /// Whether a recorded operator has written over the value, a leaf, since, as its schema says: whoever refers to its
  /// storage sees that, whether a version tells or not. (Results may be written in parts that have versions of their
  /// own, as unsafe_chunk makes them.)
  [[nodiscard]] bool written_over(plan::ValueId value) const { return values_[at(value)].written_over; }

  /// Throws Error naming the operator and the tensor when something that `op` reads, and that the program could reach,
  /// has been written since it was recorded.
  void check_inputs(plan::OpId op) const;

  // --- accounts ----------------------------------------------------------------------------------------------------

  /// Where the step first differed from all known ones.
  [[nodiscard]] const std::optional<Divergence>& divergence() const noexcept { return divergence_; }
  /// The known step that this one is, so far; null when it is none of them.
  [[nodiscard]] const KnownStep* known_step() const;
  /// What is kept because something outside of ATen filled it, in the order of the recording.
  [[nodiscard]] const std::vector<Opaque>& opaque() const noexcept { return opaque_; }
  [[nodiscard]] SavedCounts saved_counts() const;
  /// Bytes that have been moved out of the device's memory.
  [[nodiscard]] Bytes offloaded_bytes() const noexcept { return offloaded_bytes_; }
  [[nodiscard]] std::int64_t replayed_ops() const noexcept { return replayed_ops_; }
  void count_replayed() noexcept { ++replayed_ops_; }
  [[nodiscard]] std::int64_t evictions() const noexcept { return evictions_; }
  /// The operator that forward or backward is at.
  [[nodiscard]] plan::OpId position() const noexcept { return finished() ? position_ : flow_.ops(); }
  void move_to(plan::OpId op) noexcept { position_ = op; }
  /// Drops a held value that can be made again. Only through the pressure handler.
  void evict(plan::ValueId value);
  /// From now on notes how long operators take.
  void time_operators() noexcept { timed_ = true; }
  /// Seconds that an operator took when the plan's step was recorded, else now; 1 when nobody measured.
  [[nodiscard]] double seconds(plan::OpId op) const;
  [[nodiscard]] std::uint64_t signature(plan::OpId op) const { return signatures_[static_cast<std::size_t>(op)]; }
  [[nodiscard]] Profiler* profiler() const noexcept { return profiler_; }
  /// Who drives the step is done with it; the tape may live on. What was to be decided later is asked no more, and the
  /// profiler is told nothing.
  void detach() noexcept;

  /// Buffers and other leaves that recorded operators wrote, with their contents from before: writing them back undoes
  /// the step's side effects. Valid before finish().
  [[nodiscard]] std::vector<std::pair<c10::Storage, c10::Storage>> overwritten_leaves() const;

  /// Whether a recorded operator made the tensor's storage, so that it was not there before the step.
  [[nodiscard]] bool made(const at::Tensor& tensor) const;

  /// The name of a leaf whose storage is of another size now, as of a weight that has been freed after its use.
  [[nodiscard]] std::optional<std::string> resized_leaf() const;

  /// Of all leaves that are still held.
  [[nodiscard]] std::vector<c10::Storage> leaf_storages() const;

  /// Whether nobody but the tape refers to a held value's storage.
  [[nodiscard]] bool only_ours(plan::ValueId value) const;
  /// Whether the program's own references to a value are gone: no tensor outside the tape uses its storage.
  [[nodiscard]] bool program_let_go(plan::ValueId value) const;

 private:
  struct ValueState {
    c10::Storage storage;  // while resident
    // Pins the address, so that it is never taken for another storage's.
    c10::weak_intrusive_ptr<c10::StorageImpl> identity{c10::intrusive_ptr<c10::StorageImpl>()};
    Bytes nbytes = 0;
    c10::Device device{c10::kCPU};
    std::int32_t leaf = -1;  // in leaves_
    // Of the tensor that wrote it, or that a leaf was first read through. Looked at when that was over, and for results
    // once more when the recording was: from then on it is asked only of what is held as the program has it.
    SeenVersion version;
    bool uninitialized = false;
    bool of_result = false;  // a leaf: contents that something unseen left in a result
    bool written_over = false;
    bool moves = false;  // out of the device's memory once it is saved
    bool read = false;   // by a recorded operator or a saved tensor
    plan::Must must = plan::Must::Nothing;
  };
  struct Leaf {
    bool snapshot = false;  // the tape's copy: nobody else writes it
    c10::Storage original;  // of a snapshot
  };
  struct Region {
    plan::SegmentId segment;
    bool recompute;
    SelectivePolicy policy = {};
    Bytes min_offload = 0;
    ska::flat_hash_map<const OperatorTraits*, std::int64_t> invocations = {};
  };
  struct Written {
    bool is_argument;
    std::int16_t position, element;
    at::Tensor tensor;
    plan::ValueId before;
    bool whole;
    SeenVersion version;  // before the kernel
  };

  void run_collective(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);

  struct ExpectedRaise {
    plan::ValueId value;
    SeenVersion counter;
    std::uint32_t raises;
  };

  static std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }
  ValueState& state(plan::ValueId value);
  plan::ValueId value_of(const at::Tensor& tensor);
  [[nodiscard]] bool written_since(plan::ValueId value) const;
  void settle_versions();
  bool accepts(plan::ValueId value, const SeenVersion& reader);
  void inherit_versions(plan::ValueId value, plan::ValueId before);
  void set_version(plan::ValueId value, const SeenVersion& version);
  SeenVersion* find_version(plan::ValueId value, const SeenVersion& counter);
  static void expect_raise(std::vector<ExpectedRaise>& all, std::size_t first, plan::ValueId value,
                           const SeenVersion& counter);
  void excuse(const OperatorTraits& traits, const c10::IValue* arguments);
  void take_snapshot(plan::ValueId value);
  void expect_raises(plan::ValueId value, const c10::StorageImpl* storage);
  void displace(plan::ValueId value, bool reported);
  plan::ValueId new_leaf(const at::Tensor& tensor);
  plan::ValueId read(const at::Tensor& tensor, bool written);
  View view_of(const at::Tensor& tensor, plan::ValueId value);
  void hold(plan::ValueId value, const c10::Storage& storage);
  void make_opaque(plan::ValueId value, const SeenVersion& version, bool reported);
  void keep(plan::ValueId value, const c10::Storage& storage);
  void forget_offloaded();
  void watch_outputs(plan::OpId op);
  void dropped(plan::ValueId value);

  void capture_arguments(const OperatorTraits& traits, const c10::IValue* arguments);
  std::int32_t capture_tensor(const at::Tensor& tensor, bool written, bool overwrites, std::int16_t position,
                              std::int16_t element);
  void before_write(Written& written);
  void add_output(const at::Tensor& tensor, plan::ValueId overwrites, OutputSlot slot, bool uninitialized);
  void ask_policy(const OperatorTraits& traits);
  void compare_with_plan(plan::OpId op, const Call& call);
  void follow_another(plan::OpId op, std::string expected, std::string found);
  std::uint64_t sign(const OperatorTraits& traits);
  void bind(SavedTensor& saved);
  void note_module();
  void note_contents(plan::ValueId value, const View& view);
  void remember(plan::ValueId value, const c10::Storage& storage);
  void check_contents(plan::ValueId value) const;
  /// The step's first operator, or region, is about to begin.
  void decide();
  void take_planned_segments();
  [[nodiscard]] bool is_of_result(plan::ValueId value) const;
  void bind_before(const torch::jit::Stack& stack, const OperatorTraits& traits);

  [[nodiscard]] plan::SegmentId current_segment() const { return regions_.back().segment; }
  [[nodiscard]] bool covered(plan::SegmentId segment) const { return covered_[at(segment)] != 0; }
  [[nodiscard]] bool escapes(plan::ValueId value) const;
  [[nodiscard]] bool keeps_when_saved(plan::ValueId value) const;

  mutable TapeMutex mutex_;
  Policy policy_;
  Profiler* profiler_;
  plan::Dataflow flow_;
  plan::Ledger ledger_;
  std::optional<plan::SegmentCursor> planned_segments_;
  std::optional<Divergence> divergence_;
  std::vector<Opaque> opaque_;

  std::vector<Call> calls_;
  std::vector<std::uint64_t> signatures_;
  std::vector<std::int64_t> signed_words_;  // of the operator that is signed
  std::vector<std::int32_t> modules_;       // by OpId, in module_names_
  std::vector<std::string> module_names_{std::string()};
  std::int32_t module_ = 0;  // the latest
  std::vector<Argument> arguments_;
  std::vector<OutputSlot> slots_;
  std::vector<View> views_;
  std::vector<c10::IValue> constants_;
  std::vector<RandomState> random_states_;
  GeometryPool geometry_;
  std::vector<ValueState> values_;
  std::vector<ExpectedRaise> unsettled_;  // of what was just written
  // Further counters of the same storage, as `.data` and _unsafe_view make them; few values have any.
  ska::flat_hash_map<plan::ValueId, std::vector<SeenVersion>> other_versions_;
  std::vector<plan::ValueId> held_results_;  // and some that no longer are
  std::vector<Leaf> leaves_;
  ska::flat_hash_map<c10::StorageImpl*, plan::ValueId> current_;  // the version a storage holds now

  Watch watch_;
  std::vector<at::Tensor> watched_;              // results of the call being recorded
  std::exception_ptr failure_;                   // of the policy; thrown when the call has been recorded whole
  Tape* outer_ = nullptr;                        // that records when this one does not
  std::vector<std::uint64_t> sequence_numbers_;  // by OpId, of the next node when the operator ran; when watched
  VerifyReplay verify_ = VerifyReplay::Off;
  /// How backward looks at a value, as first saved: what no view covers nobody may have written. Remembered when
  /// dropped.
  struct Verified {
    View view;
    std::optional<Remembered> then;
  };
  std::unordered_map<plan::ValueId, Verified> verified_;
  std::unordered_map<plan::ValueId, memory::Offloaded> offloaded_;
  std::shared_ptr<memory::SpillFile> spill_file_;
  Bytes offloaded_bytes_ = 0;
  std::vector<Region> regions_;
  std::vector<char> covered_;    // per segment: it or an enclosing one is recomputed
  std::vector<char> recompute_;  // per segment: its own action
  std::vector<SavedTensor*> waiting_;
  std::vector<plan::ValueId> inputs_;  // scratch of the call being recorded
  std::vector<Written> written_;
  plan::Must must_ = plan::Must::Nothing;
  plan::Action preferred_ = plan::kRecompute;  // of the innermost region, where no plan says anything
  std::vector<c10::StorageImpl*> input_storages_;
  int pass_ = kNoPass;
  plan::OpId position_ = 0;  // of backward
  bool timed_ = false;
  std::vector<float> op_seconds_;  // by OpId, once timed
  std::int64_t unplain_saved_ = 0;
  std::int64_t replayed_ops_ = 0;
  std::int64_t evictions_ = 0;
};

}  // namespace snug::record
