// State in shards, piece by piece.
#include "snug/train/state_of_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "snug/base/errors.h"
#include "tests/parallel/processes.h"

namespace snug::train {
namespace {

using testing::in_processes;

/// A vector of 100 numbers, which the processes have in parts of 40 and the rest, and one that all have.
std::vector<state::TensorPart> parts_of(const Team& team) {
  const std::int64_t first = 40 * team.rank(), count = team.rank() + 1 < team.size() ? 40 : 100 - first;
  return {{"numbers", torch::arange(first, first + count, at::kDouble), {100}, first},
          {"count", torch::full({}, 3.0F), {}, 0}};
}

at::Tensor read(const state::TensorSource& source, std::size_t fails_behind = 1 << 20) {
  std::vector<std::byte> all;
  source.bytes([&](std::span<const std::byte> bytes) {
    if (all.size() >= fails_behind) throw Error("the disk is full");
    all.insert(all.end(), bytes.begin(), bytes.end());
  });
  return torch::from_blob(all.data(), source.shape, source.dtype).clone();
}

TEST(StateOfTeam, IsReadInPiecesAndGoesOnAfterAFailureInTheMiddle) {
  in_processes(3, [](parallel::World& world) {
    const Team team(std::shared_ptr<parallel::World>(&world, [](auto*) {}));
    StateOfTeam state(team, {{"file", parts_of(team)}}, /*piece=*/64);
    const state::DividedTensors divided = state.divided().at("file");
    EXPECT_EQ(divided.all.size(), 2U);
    for (const std::size_t fails_behind :
         {std::size_t{400}, std::size_t{1} << 20U, std::size_t{0}, std::size_t{1} << 20U}) {
      if (!team.is_first()) {
        state.serve();
        continue;
      }
      state.begin();
      if (fails_behind < 1000) {
        EXPECT_THROW((void)read(divided.all.at("numbers"), fails_behind), Error);
      } else {
        EXPECT_TRUE(at::equal(read(divided.all.at("numbers")), torch::arange(100, at::kDouble)));
        EXPECT_EQ(read(divided.all.at("count")).item<float>(), 3);
      }
      state.done();
    }
    // All of them are as far.
    EXPECT_EQ(team.gather({1.0}).size(), 3U);
  });
}

/// Nothing is to be asked of the others, who wait all the same.
TEST(StateOfTeam, IsOverWhereTheFirstHasAll) {
  in_processes(2, [](parallel::World& world) {
    const Team team(std::shared_ptr<parallel::World>(&world, [](auto*) {}));
    StateOfTeam state(team, {{"file", {{"count", torch::full({}, 3.0F), {}, 0}}}});
    if (!team.is_first()) return state.serve();
    state.begin();
    EXPECT_EQ(read(state.divided().at("file").all.at("count")).item<float>(), 3);
    state.done();
  });
}

TEST(StateOfTeam, RefusesPartsThatAreNotOfOneWhole) {
  in_processes(2, [](parallel::World& world) {
    const Team team(std::shared_ptr<parallel::World>(&world, [](auto*) {}));
    std::vector<state::TensorPart> with_a_gap = parts_of(team), another = with_a_gap;
    with_a_gap[0].first += 40 * team.rank();
    another[0].shape = {100 + team.rank()};
    EXPECT_THROW(StateOfTeam(team, {{"file", with_a_gap}}), std::logic_error);
    EXPECT_THROW(StateOfTeam(team, {{"file", another}}), std::logic_error);
  });
}

}  // namespace
}  // namespace snug::train
