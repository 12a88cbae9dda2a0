#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/arena.h"
#include "snug/memory/device_memory.h"

namespace snug::replay {

/// Has steps lie in an arena: notes what each asks the device's memory for, and when it gives that back; where two have
/// asked alike, chooses the places of all that is given back before the next step begins, and from then on steps that
/// ask so get them. All sessions of a device have the same one. Any thread.
class StepArena {
 public:
  /// That of the device, which is there as long as somebody has it. Throws UsageError where addresses do not matter.
  static std::shared_ptr<StepArena> of(memory::DeviceMemory& memory);
  explicit StepArena(memory::DeviceMemory& memory);
  /// Blocks lie wherever they did before. The range goes with the last that lies there.
  ~StepArena();
  StepArena(const StepArena&) = delete;
  StepArena& operator=(const StepArena&) = delete;

  /// A step begins, and the last one, with all that came after it, is over.
  void begin();

  struct Stats {
    Bytes bytes = 0;             ///< of the arena; 0: no two steps have asked alike yet
    Bytes highest = 0;           ///< what takes most at one time of what lies there: no arena is smaller
    std::int64_t placed = 0;     ///< blocks of the last step, and after it, at their places
    std::int64_t elsewhere = 0;  ///< others of those, as what outlives a step
  };
  /// Since the last step began.
  [[nodiscard]] Stats stats() const;

 private:
  using Occupied = std::vector<std::pair<Bytes, Bytes>>;
  using Places = std::shared_ptr<const memory::Arena::Places>;
  /// Where the blocks of a step lie that do not outlive it.
  struct Chosen {
    Places places{};
    Bytes bytes = 0, highest = 0;
    Bytes outliving = 0;  // of the others
  };
  /// Steps that ask alike.
  struct Kind {
    std::uint64_t hash = 0;
    std::vector<memory::Arena::Asked> asked{};  // with the latest that each was given back, of all such steps
    int times_chosen = 0, times_beside = 0;
    Chosen chosen{};      // once there were two such steps
    Occupied occupied{};  // by what had outlived other steps, all the same, when the places beside that were chosen
    Places beside{};
  };
  static Chosen choose(const std::vector<memory::Arena::Asked>& asked, const Occupied& occupied);
  void note(std::vector<memory::Arena::Asked> asked);
  void resize();
  static const Places& places_beside(Kind& kind, const Occupied& occupied);

  memory::DeviceMemory& memory_;
  mutable std::mutex mutex_;  // of what follows
  std::shared_ptr<memory::Arena> arena_;
  std::vector<Kind> kinds_;  // the last first
  Bytes wanted_ = 0;         // when the arena was made
};

}  // namespace snug::replay
