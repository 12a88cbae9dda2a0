#include "snug/parallel/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "snug/base/errors.h"

namespace snug::parallel {

Mesh::Mesh(std::shared_ptr<World> world, std::vector<Axis> axes) : world_(std::move(world)), axes_(std::move(axes)) {
  std::int64_t all = 1;
  std::set<std::string> names;
  for (const Axis& axis : axes_) {
    if (axis.size < 1)
      throw UsageError(fmt::format("mesh: {} processes along {}; there must be one or more", axis.size, axis.name));
    if (!names.insert(axis.name).second) throw UsageError(fmt::format("mesh: {} is there twice", axis.name));
    all *= axis.size;
  }
  const int processes = world_->all()->size();
  if (all != processes) {
    std::vector<std::string> sizes;
    for (const Axis& axis : axes_) sizes.push_back(fmt::format("{} {}", axis.name, axis.size));
    throw UsageError(fmt::format("mesh: {} are {} processes, and there are {}; choose sizes that multiply to that",
                                 fmt::join(sizes, ", "), all, processes));
  }
  place_.resize(axes_.size());
  int rest = world_->all()->rank();
  for (std::size_t i = axes_.size(); i-- > 0;) {
    place_[i] = rest % axes_[i].size;
    rest /= axes_[i].size;
  }
}

std::size_t Mesh::index_of(const std::string& axis) const {
  const auto found = std::ranges::find(axes_, axis, &Axis::name);
  if (found != axes_.end()) return static_cast<std::size_t>(found - axes_.begin());
  std::vector<std::string> names;
  for (const Axis& one : axes_) names.push_back(one.name);
  throw UsageError(fmt::format("mesh: there is no axis {}; there are {}", axis, fmt::join(names, ", ")));
}

std::shared_ptr<ProcessGroup> Mesh::group(const std::vector<std::string>& along) {
  std::set<std::size_t> free;
  std::vector<std::string> axes;  // along which there are others: what is asked for with more is the same group
  for (const std::string& axis : along) {
    if (!free.insert(index_of(axis)).second) throw UsageError(fmt::format("mesh: a group along {} twice", axis));
    if (size(axis) > 1) axes.push_back(axis);
  }
  if (const auto made = groups_.find(axes); made != groups_.end()) return made->second;
  std::vector<int> strides(axes_.size(), 1);
  for (std::size_t i = axes_.size(); i-- > 1;) strides[i - 1] = strides[i] * axes_[i].size;
  int first = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) first += free.contains(i) ? 0 : place_[i] * strides[i];
  // Every place that differs along these alone; the first of them slowest.
  std::vector<int> ranks{first};
  for (const std::string& axis : axes) {
    std::vector<int> more;
    for (const int rank : ranks) {
      for (int i = 0; i < size(axis); ++i) more.push_back(rank + i * strides[index_of(axis)]);
    }
    ranks = std::move(more);
  }
  return groups_.emplace(axes, world_->group(ranks)).first->second;
}

}  // namespace snug::parallel
