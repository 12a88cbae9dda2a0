#pragma once

#include <cstdint>

namespace snug {

/// What a rerun is held against.
enum class DeterminismCheck : std::uint8_t {
  None,      ///< only the number of saved tensors
  Metadata,  ///< shape, dtype and device of each
  Values     ///< their contents too, by a hash: finds functions that compute something else every time
};

/// Backward calls the function again, as torch.utils.checkpoint (use_reentrant=False) does, for functions that compute
/// outside of ATen. Whatever else the function does, it does twice.
struct Rerun {
  bool preserve_rng_state = true;  ///< the default generators of all devices; without it random numbers are new ones
  DeterminismCheck determinism_check = DeterminismCheck::Metadata;
  bool debug = false;      ///< errors tell where the operators of the two runs part; slow
  bool early_stop = true;  ///< leave the function, by an exception, when the last tensor that backward needs is there
};

/// Overrides Rerun::early_stop of the checkpoints that run their forward in its life, on this thread; the innermost
/// wins. As torch.utils.checkpoint.set_checkpoint_early_stop.
class EarlyStopScope {
 public:
  explicit EarlyStopScope(bool early_stop);
  ~EarlyStopScope();
  EarlyStopScope(const EarlyStopScope&) = delete;
  EarlyStopScope& operator=(const EarlyStopScope&) = delete;

 private:
  int previous_;
};

namespace replay {

/// Whether the rerun of a checkpoint whose forward begins now, on this thread, stops early.
bool stops_early(const Rerun& options);

}  // namespace replay
}  // namespace snug
