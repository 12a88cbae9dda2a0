#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "snug/base/bytes.h"
#include "snug/state/training_state.h"

namespace snug::state {

/// Which states stay.
struct Retention {
  std::int64_t last = 2;  ///< the newest so many; at least 1, and always the one just written
  std::int64_t best = 1;  ///< beside them, those with the smallest metric
};

/// Writes training state into folders of its own under one folder: into an unfinished one first, every file to the
/// disk, a manifest with a hash of each, then renamed. A crash at any moment leaves the states that were there before.
/// One at a time for a folder; one thread at a time for an object.
class StateWriter {
 public:
  /// Makes the folder, and removes what dead processes, or this one before, left unfinished there. Throws Error when it
  /// cannot.
  explicit StateWriter(std::filesystem::path folder, Retention retention = {});
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;
  /// Waits for what is being written; its failure is lost, so call wait() before.
  ~StateWriter();

  /// Saves the state after `step` steps. Tensors are copied first, file by file, as long as the copies take at most
  /// `room` bytes of its blocks together; what is copied goes to the disk in the background, the rest before this
  /// returns. No room: all of it does. Copies come from LibTorch's allocator, tagged as staging, and count towards the
  /// budget until they are written; what finds no room after all is written at once. A state of the same step is
  /// replaced. Waits for the write before, and throws what that failed with, or its own failure: Error, with the
  /// system's reason. The states that were there stay.
  void write(const TrainingState& state, std::int64_t step, const std::map<std::string, std::string>& texts = {},
             Bytes room = 0);

  /// Notes the metric of the state of `step`, which is there, and removes states that are no longer among the last or
  /// the best. Waits for the write before. Throws Error as write() does; the state is then as it was.
  void set_metric(std::int64_t step, double metric);

  /// Waits for what is being written. Throws Error when that failed.
  void wait();

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// How many bytes the copies of the last write took, in blocks of LibTorch's allocator.
  [[nodiscard]] Bytes copied() const { return copied_; }

 private:
  class Unfinished;
  void remove_abandoned() const;
  void prune(std::int64_t written) const noexcept;

  std::filesystem::path folder_;
  Retention retention_;
  std::thread background_;
  std::exception_ptr failure_;  // of the background; read after it is joined
  Bytes copied_ = 0;
};

}  // namespace snug::state
