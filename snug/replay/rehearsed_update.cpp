#include "snug/replay/rehearsed_update.h"

#include <optional>
#include <utility>

#include "snug/memory/tag.h"
#include "snug/record/recording_key.h"
#include "snug/replay/recording_scope.h"

namespace snug::replay {

RehearsedUpdate::~RehearsedUpdate() {
  try {
    forget();
  } catch (...) {  // on the way of another error, which is reported
  }
}

void RehearsedUpdate::run(record::Profiler& profiler, const record::Tape& tape, UsesMeasured& uses,
                          const std::vector<at::Tensor>& parameters) {
  if (!rehearsal_ || std::exchange(begun_, true)) return;
  check_updates_any(rehearsal_, parameters);
  // Perhaps on the way into an operator, where no other one would be seen.
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard seen(keys.included_, keys.excluded_.remove(record::kRecordingKey));
  made_ = true;
  // The second run has them again where the first has let go of them.
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters) gradients.push_back(p.grad());
  std::optional<UndoneWrites::Pause> trusted;
  if (rehearsal_.writes == Rehearsal::Writes::Nothing) trusted.emplace(writes_);
  const UsesMeasured::Count before = uses.count();
  profiler.rehearse(tape, [&] {
    uses.forget_after(before);  // those of the first run
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
    return rehearsal_.run();
  });
  trusted.reset();
  writes_.undo();  // before the step function is left
}

std::vector<Bytes> RehearsedUpdate::prepare(const std::vector<memory::DeviceMemory*>& devices) {
  const std::vector<Bytes> before = allocated_on(devices);
  if (rehearsal_.prepare) {
    made_ = true;
    const memory::TagScope tag(memory::Tag::Optimizer);
    rehearsal_.prepare();
    writes_.undo();
  }
  return more_than(before, devices);
}

void RehearsedUpdate::forget() {
  if (std::exchange(made_, false) && rehearsal_.forget) rehearsal_.forget();
}

}  // namespace snug::replay
