#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "snug/parallel/world.h"

namespace snug::parallel {

/// The processes of a world as a grid with named axes, such as "pipeline", "data" and "tensor", and the groups along
/// them. Neighbours along the last axis have neighbouring ranks, and so are on one machine where launchers say which.
class Mesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
  };
  /// Throws UsageError where sizes do not multiply to the number of processes, or a name comes twice.
  Mesh(std::shared_ptr<World> world, std::vector<Axis> axes);

  [[nodiscard]] const std::vector<Axis>& axes() const noexcept { return axes_; }
  [[nodiscard]] int size(const std::string& axis) const { return axes_[index_of(axis)].size; }
  /// Where this process is along it.
  [[nodiscard]] int at(const std::string& axis) const { return place_[index_of(axis)]; }
  [[nodiscard]] World& world() const noexcept { return *world_; }

  /// Those that are where this one is along all other axes, in the order of the axes given. Processes of one group ask
  /// for it together the first time. Throws UsageError for an axis that there is not.
  [[nodiscard]] std::shared_ptr<ProcessGroup> group(const std::vector<std::string>& along);

 private:
  [[nodiscard]] std::size_t index_of(const std::string& axis) const;

  std::shared_ptr<World> world_;
  std::vector<Axis> axes_;
  std::vector<int> place_;  // of this process, by axis
  std::map<std::vector<std::string>, std::shared_ptr<ProcessGroup>> groups_;
};

}  // namespace snug::parallel
