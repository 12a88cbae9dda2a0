#include "snug/record/codec_trial.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "snug/memory/tensor_codec.h"
#include "snug/record/recording_key.h"
#include "snug/record/step_clock.h"

namespace snug::record {
namespace {

constexpr int kTries = 2;  // behind one that loads kernels, and takes memory from the system

/// The highest that `work` has allocated at once above what it left.
template <class Work>
Bytes scratch_of(memory::DeviceMemory& memory, const Work& work) {
  const auto meter = memory.meter();
  work();
  const Bytes peak = meter->take().allocated;
  return std::max<Bytes>(peak - memory.stats().allocated, 0);
}

CodecTrial tried(memory::DeviceMemory& memory, memory::Codec codec, std::size_t element, Bytes bytes, Bytes encoded) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
  const auto options = at::TensorOptions(at::kByte).device(memory.device());
  const at::Tensor contents = at::empty({bytes}, options).fill_(1), code = at::empty({encoded}, options);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  constexpr Bytes kUnknown = std::numeric_limits<Bytes>::max();  // others may free at the same time: the least counts
  CodecTrial trial{
      .encode_seconds = kNever, .decode_seconds = kNever, .encode_scratch = kUnknown, .decode_scratch = kUnknown};
  for (int i = 0; i <= kTries; ++i) {
    StepClock clock(memory.device());
    const auto began = clock.now();
    const Bytes encode_scratch = scratch_of(memory, [&] { (void)memory::encode(codec, element, contents, code); });
    const auto there = clock.now();
    const Bytes decode_scratch = scratch_of(memory, [&] { memory::decode(codec, element, code, contents); });
    const auto over = clock.now();
    clock.settle();
    trial.encode_scratch = std::min(trial.encode_scratch, encode_scratch);
    trial.decode_scratch = std::min(trial.decode_scratch, decode_scratch);
    if (i == 0) continue;
    trial.encode_seconds = std::min(trial.encode_seconds, clock.seconds(began, there));
    trial.decode_seconds = std::min(trial.decode_seconds, clock.seconds(there, over));
  }
  return trial;
}

}  // namespace

std::optional<CodecTrial> codec_trial(memory::DeviceMemory& memory, memory::Codec codec, std::size_t element,
                                      Bytes bytes, Bytes encoded) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, memory::Codec, std::size_t, Bytes, Bytes>, CodecTrial> known;
  const std::tuple key(memory.device().str(), codec, element, bytes, encoded);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  try {  // without the lock: whoever is asked for room may come here
    const CodecTrial trial = tried(memory, codec, element, bytes, encoded);
    const std::lock_guard lock(mutex);
    return known.try_emplace(key, trial).first->second;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace snug::record
