#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/plan/step/step_graph.h"

namespace snug::record {

class Tape;

/// Turns one recorded step into a StepGraph: seconds and bytes of every operator, when the program lets go of a value,
/// and what backward unpacks, allocates and frees, as they would be if everything that autograd saves were kept. No
/// other thread should allocate on the device. Made before the step and told of every event by the tape; what is
/// allocated when the first one comes is not the step's.
class Profiler {
 public:
  /// `aside`: bytes that are allocated now but will not be when the planned step runs.
  explicit Profiler(memory::DeviceMemory& memory, Bytes aside = 0);

  // From the tape.
  /// An operator reads a tensor; noted if it is a leaf that gradients are for.
  void reads(const at::Tensor& tensor) {
    if (tensor.requires_grad() && tensor.is_leaf() && noted_.insert(tensor.unsafeGetTensorImpl()).second)
      leaves_.push_back(tensor);
  }
  /// In the order of their first use.
  [[nodiscard]] const std::vector<at::Tensor>& leaves() const noexcept { return leaves_; }
  void op_begins(const Tape& tape);
  void kernel_begins();
  void kernel_ends();
  void op_not_recorded();
  void op_recorded(const Tape& tape, plan::OpId op);
  void saved(plan::ValueId value);
  /// Something unseen has written over it: no plan can keep it.
  void displaced(plan::ValueId value);
  /// `stays`: it is resident still; else only the node that asked for it has it.
  void unpacked(plan::ValueId value, bool stays);
  /// What a replay allocates and frees is not the step's own.
  void replay_begins();
  void replay_ends();
  void released(plan::ValueId value);
  /// The tape has freed a storage of so many bytes that nobody else held.
  void tape_freed(Bytes bytes);
  /// What the tape freed on account of the latest event is part of that event.
  void rebase();
  void before_settle(const Tape& tape);

  /// The optimizer step comes here. Runs `update` twice: what the first run leaves behind is state that later steps
  /// have from the beginning, and counts as memory that was there before the step; the second takes what each update
  /// takes. There is no update if it says so by returning false.
  void rehearse(const Tape& tape, const std::function<bool()>& update);
  /// Bytes of that state.
  [[nodiscard]] Bytes state_to_come() const noexcept { return state_to_come_; }

  /// The step is over, its saved tensors are gone. Backward ran from before_settle() until now.
  plan::StepGraph finish(const Tape& tape);

 private:
  void begin();
  void push(plan::Event::Kind kind, std::int32_t id, Bytes peak = 0, Bytes net = 0);
  /// Seconds of the step itself so far.
  [[nodiscard]] double clock() const;
  std::int32_t device_index(c10::Device device);
  /// Memory between two events becomes an event of its own.
  void mark();
  /// Highest memory above that at the last mark, as it would have been without evictions; starts anew.
  Bytes take_peak();
  void poll(const Tape& tape);
  plan::ValueInfo& info(plan::ValueId value);

  memory::DeviceMemory& memory_;
  std::unique_ptr<memory::Meter> meter_;
  plan::StepGraph graph_;
  std::vector<at::Tensor> leaves_;
  std::unordered_set<const void*> noted_;
  std::vector<char> borrowed_;        // unpacked, no longer on the tape, and not released yet
  std::vector<plan::ValueId> alive_;  // the program refers to them
  Bytes aside_;
  bool begun_ = false;
  Bytes level_ = 0;    // allocated at the last mark
  Bytes evicted_ = 0;  // since the last mark; without a limit it would still be there
  Bytes died_ = 0;     // freed since the last mark, with an event of its own
  double started_ = 0;
  double kernel_started_ = 0;
  double kernel_seconds_ = 0;
  double replay_started_ = 0;
  double replay_seconds_ = 0;  // all replays together, and rehearsals
  double pushed_ = 0;          // when the latest event was, on the clock
  Bytes state_to_come_ = 0;
};

}  // namespace snug::record
