#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "snug/parallel/links.h"
#include "snug/parallel/rehearsed_time.h"
#include "snug/parallel/world.h"

namespace snug::parallel {

/// Processes that have not been started: what one of them would do, and how much memory and time that takes, is found
/// out in this process alone.
///
/// Collectives are as long under way as links say, one behind the other on each, and what comes of them is what the
/// process has itself: sums are its own summands, and the others send what it would send them. Messages bring numbers
/// by chance, around 0, but small ones the latest of the same type and size that one of these processes has sent. So
/// sizes, the operators that run, and the memory that they take are those of the real ones wherever the contents of
/// others' tensors decide on none of them. Nothing fails, and nobody asks for anything.
class Rehearsal {
 public:
  /// How others are, as far as it matters to one of them.
  enum class Others : std::uint8_t {
    Alike,  ///< they record the same steps
    Unlike
  };
  /// `device`: that they compute on, the CPU or a described one, on whose clock collectives take their time. Throws
  /// UsageError for what there cannot be.
  Rehearsal(int processes, const Links& links, c10::Device device = c10::Device(c10::kCPU));

  /// The world of the process of that rank. The first stage of a pipeline comes before others, whose messages are as
  /// long as its own.
  [[nodiscard]] std::shared_ptr<World> world_of(int rank) const;

  /// From here on; see Others.
  void set_others(Others others);
  /// How long these processes have waited for messages, in all: of a pipeline, the ways between stages.
  [[nodiscard]] double seconds_of_messages() const;
  /// That one of them has sent.
  [[nodiscard]] Bytes largest_message() const;

 private:
  class Shared;
  class Ways;
  class Backend;
  class OfOne;
  class Group;
  int processes_;
  Links links_;
  std::shared_ptr<RehearsedTime> time_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace snug::parallel
