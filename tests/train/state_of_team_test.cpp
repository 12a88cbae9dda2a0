// State in shards, piece by piece.
#include "snug/train/state_of_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <thread>
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
      bool failed = false;
      try {
        state.write_together([&] {
          EXPECT_TRUE(at::equal(read(divided.all.at("numbers"), fails_behind), torch::arange(100, at::kDouble)));
          EXPECT_EQ(read(divided.all.at("count")).item<float>(), 3);
        });
      } catch (const Error&) {
        failed = true;
      }
      EXPECT_EQ(failed, team.is_first() && fails_behind < 1000) << "the others are told that it is over";
    }
    // All of them are as far.
    EXPECT_EQ(team.gather({1.0}).size(), 3U);
  });
}

/// Two columns of parts, of which two processes each have half a row-wise shard, as of ZeRO over tensor parallel; and
/// uneven rows.
TEST(StateOfTeam, PutsColumnsAndShardsOfThemTogether) {
  in_processes(4, [](parallel::World& world) {
    const Team team(std::shared_ptr<parallel::World>(&world, [](auto*) {}));
    const at::Tensor matrix = torch::arange(10 * 6, at::kFloat).view({10, 6});
    const std::int64_t column = team.rank() % 2, shard = team.rank() / 2;
    const at::Tensor columns = matrix.narrow(1, 3 * column, 3).contiguous().view(-1);
    const std::int64_t first = shard * 14, count = shard == 0 ? 14 : 16;
    const std::int64_t rows = team.rank() == 3 ? 1 : 3, row = 3 * team.rank();
    const at::Tensor of_columns = columns.narrow(0, first, count).clone();
    const at::Tensor of_rows = matrix.narrow(0, row, rows).clone();
    const std::vector<state::TensorPart> mine = {
        {"columns", of_columns, {10, 6}, first, {.first = 3 * column, .length = 3, .stride = 6}},
        {"rows", of_rows, {10, 6}, 0, {.first = 6 * row, .length = 6 * rows, .stride = 60}}};
    for (const Bytes piece : {Bytes{4}, Bytes{44}, 1_MiB}) {
      StateOfTeam state(team, {{"file", mine}}, piece);
      bool was_read = false;
      state.write_together([&] {
        const state::DividedTensors divided = state.divided().at("file");
        EXPECT_TRUE(at::equal(read(divided.all.at("columns")), matrix));
        EXPECT_TRUE(at::equal(read(divided.all.at("rows")), matrix));
        was_read = true;
      });
      EXPECT_EQ(was_read, team.is_first());
    }
    for (const state::TensorPart& part : mine) {
      const at::Tensor was = part.part.clone();
      part.part.zero_();
      copy_from_whole(matrix.view(-1), part);
      EXPECT_TRUE(at::equal(part.part, was));
    }
  });
}

/// Nothing is to be asked of the others, who wait all the same.
TEST(StateOfTeam, IsOverWhereTheFirstHasAll) {
  in_processes(2, [](parallel::World& world) {
    const Team team(std::shared_ptr<parallel::World>(&world, [](auto*) {}));
    StateOfTeam state(team, {{"file", {{"count", torch::full({}, 3.0F), {}, 0}}}});
    state.write_together([&] { EXPECT_EQ(read(state.divided().at("file").all.at("count")).item<float>(), 3); });
  });
}

TEST(StateOfTeam, IsWaitedForLongerThanForCollectives) {
  const auto ended = testing::outcomes_of(3, [](const parallel::Launched& launched) {
    const auto world = parallel::World::meet(launched, {.timeout = std::chrono::milliseconds(1500)});
    const Team team(world);
    StateOfTeam state(team, {{"file", parts_of(team)}}, /*piece=*/64, /*quiet=*/std::chrono::milliseconds(200));
    state.write_together([&] {
      const state::DividedTensors divided = state.divided().at("file");
      for (int i = 0; i < 2; ++i) {
        std::this_thread::sleep_for(std::chrono::seconds(4));  // as a slow disk, before and behind what is asked for
        EXPECT_TRUE(at::equal(read(divided.all.at("numbers")), torch::arange(100, at::kDouble)));
      }
      std::this_thread::sleep_for(std::chrono::seconds(4));
    });
    EXPECT_EQ(team.gather({1.0}).size(), 3U);
  });
  for (const testing::Ended& one : ended) EXPECT_EQ(one.exit_code, 0) << one.output;
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
