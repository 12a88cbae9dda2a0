#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/SmallVector.h>

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/plan/step/step_graph.h"
#include "snug/record/encodings.h"
#include "snug/record/memory_gauge.h"
#include "snug/record/step_clock.h"
#include "snug/record/tape_observer.h"

namespace snug::record {

/// Turns one recorded step into a StepGraph: seconds and bytes of every operator, when the program lets go of a value,
/// and what backward unpacks, allocates and frees, as they would be if everything that autograd saves were kept. No
/// other thread should allocate on the devices. Made before the step and told of every event by the tape; what is
/// allocated when the first one comes is not the step's.
class Profiler final : public TapeObserver {
 public:
  /// Of these devices' memory, the first of which the step is planned for. One at least, each once. `lossy`: the codec
  /// that plans may use beside those that give back the same bits.
  explicit Profiler(std::vector<MemoryGauge> devices, plan::Codec lossy = plan::Codec::None);
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  [[nodiscard]] bool measures() const override { return true; }
  void op_begins(const Tape& tape) override;
  void reads(const at::Tensor& argument) override;
  void kernel_begins() override;
  void kernel_ends() override;
  void op_recorded(const Tape& tape, plan::OpId op) override;
  void op_not_recorded() override;
  void saved(const Tape& tape, plan::ValueId value) override;
  void displaced(plan::ValueId value) override;
  void settle_begins(const Tape& tape) override;
  // What the tape frees on account of an event is part of that event.
  void settle_ends() override { rebase(); }
  void unpacked(plan::ValueId value) override;
  // What a replay allocates and frees is not the step's own.
  void aside_begins() override;
  void aside_ends() override;
  void release_begins(plan::ValueId value) override;
  void release_ends() override;
  void evicts(const Tape& tape, plan::ValueId value) override;
  void dropped(plan::ValueId value, std::optional<Bytes> freed) override;

  /// Leaves that gradients are for and that operators read, in the order of their first use.
  [[nodiscard]] std::vector<at::Tensor> leaves() const;

  /// The optimizer step comes here. Runs `update` twice: what the first run leaves behind is state that later steps
  /// have from the beginning, and counts as memory that was there before the step; the second takes what each update
  /// takes. There is no update if it says so by returning false.
  void rehearse(const Tape& tape, const std::function<bool()>& update);
  /// Where what is neither the step's own nor a kernel's is left out.
  [[nodiscard]] StepClock& clock() noexcept { return clocks_.front(); }
  /// Bytes of that state, by device.
  [[nodiscard]] const std::vector<Bytes>& state_to_come() const noexcept { return state_to_come_; }

  /// The step is over, its saved tensors are gone. Backward ran from settle_begins() until now, where it was its turn.
  plan::StepGraph finish(const Tape& tape);

  /// Micro-batches of one step, each on a tape and with a profiler of its own, whose passes run by turns. What one
  /// takes while it is not its turn is none of the others', and they take none of its time. Outlives them.
  /// Any thread may evict meanwhile.
  class Turns {
   public:
    /// What those have of a device that have run, and whose turn it is not, but for what is there because the program
    /// refers to it, and for no other reason: that is as if it were not theirs. By device.
    [[nodiscard]] Bytes held(std::size_t device);

   private:
    friend class Profiler;
    /// Of one that waits; by any thread.
    void evicted(const memory::DeviceMemory& memory, Bytes bytes);
    std::vector<Profiler*> waiting_;
    std::mutex mutex_;  // of what follows
    Profiler* now_ = nullptr;
    std::vector<std::pair<const memory::DeviceMemory*, Bytes>> evicted_;  // of those that wait, and not counted yet
  };
  /// Before the first event. It is this one's turn from its first operator on.
  void take_turns(Turns& turns) { turns_ = &turns; }
  /// It is the turn of others from here on, until its own comes again.
  void wait(const Tape& tape);
  void go_on();

 private:
  void begin();
  /// Memory is counted from here on.
  void rebase();
  void push(plan::Event::Kind kind, std::int32_t id, const std::vector<MemoryGauge::Taken>& taken = {});
  /// Writes down how long everything took.
  void note_seconds();
  std::int32_t device_index(c10::Device device);
  /// Of a step that is known what is known of it is taken.
  static bool measures_encodings(const Tape& tape);
  /// Memory between two events becomes an event of its own.
  void mark();
  void poll(const Tape& tape);
  plan::ValueInfo& info(plan::ValueId value);
  /// Of the device that the value is on; nullptr where nobody measures that.
  MemoryGauge* gauge_of(plan::ValueId value);
  /// What the step takes for the value has been freed, which an event of its own says.
  void died(plan::ValueId value);
  /// What those have let go of whose turn it is not is none of this one's.
  void look_at_others();
  void count_evicted_of_others();
  /// Where this one waits: a backward pass of that one may go through what this one has noted.
  [[nodiscard]] Profiler* one_in_turn() const;
  /// Results that are there because the program refers to them, and for no other reason.
  [[nodiscard]] std::vector<plan::ValueId> referred(const Tape& tape) const;
  void keep_what_leaves_have(const Tape& tape);
  /// What is none of its own where it waits goes at the end of the forward pass.
  void let_go_of_referred();
  void begin_turn();
  void waited();
  /// What an operator took of a device, whose outputs there are no part of what it left behind.
  MemoryGauge::Taken taken_by(const plan::Dataflow& flow, plan::OpId op, std::size_t device);

  std::vector<MemoryGauge> gauges_;  // by device: the graph's first ones are these
  MeasuredEncodings encodings_;
  plan::StepGraph graph_;
  // Weak: what a front end hides inside of others dies with them.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> leaves_;
  std::unordered_set<const void*> noted_;
  bool releasing_ = false;            // between release_begins and release_ends
  std::vector<plan::ValueId> alive_;  // the program refers to them
  bool begun_ = false;
  std::deque<StepClock> clocks_;  // by device, as gauges_; the step's is the first
  struct Span {
    StepClock::Moment from = 0, to = 0;
  };
  struct OnClock {
    std::size_t clock = 0;
    Span span;
  };
  struct Kernel {
    c10::SmallVector<OnClock, 2> spans;
    std::optional<double> again;  // seconds: see say_seconds_again()
  };
  /// The one that ran last, by the clocks of its operands' devices.
  c10::SmallVector<OnClock, 2> last_kernel(const Tape& tape, plan::OpId op) const;
  std::vector<Span> kernel_;               // the one that ran last, by clock
  std::vector<Kernel> kernels_;            // by operator
  std::vector<StepClock::Moment> pushed_;  // by event
  StepClock::Moment replay_ = 0;           // its begin
  Span update_;
  std::vector<Bytes> state_to_come_;
  struct Waits {
    const Tape* tape;
    StepClock::Moment since;
  };
  std::optional<Waits> waits_;
  Turns* turns_ = nullptr;
  std::vector<plan::ValueId> referred_;  // by the program alone, when its forward pass was over
};

}  // namespace snug::record
