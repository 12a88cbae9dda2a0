// Tensors of which several processes have parts, saved as those of one.
#include "snug/state/divided_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <vector>

#include "snug/base/errors.h"
#include "snug/state/safetensors.h"
#include "snug/state/state_writer.h"
#include "snug/state/training_state.h"
#include "tests/base/scratch.h"

namespace snug::state {
namespace {

/// Parts of a matrix of 6 x 4 and of a vector, as that process has them which begins with those elements.
DividedTensors divided(const at::Tensor& matrix, std::int64_t first, std::int64_t count) {
  DividedTensors tensors;
  tensors.mine.push_back({"matrix", torch::zeros({count}), {6, 4}, first});
  tensors.mine.push_back({"count", torch::zeros({}), {}, 0});
  tensors.all.emplace("matrix", matrix);
  tensors.all.emplace("count", torch::full({}, 7.0F));
  return tensors;
}

TEST(DividedTensors, AreReadInPartsOfAnySizes) {
  const auto folder = testing::scratch("divided");
  const at::Tensor matrix = torch::randn({6, 4});
  TrainingState saved;
  saved.add_divided("optimizer", divided(matrix, 0, 8));
  StateWriter writer(folder);
  writer.write(saved, 1, {}, 1_GiB);
  writer.wait();
  const auto path = folder / state_name(1);
  for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 24}, {5, 13}, {23, 1}}) {
    TrainingState state;
    const DividedTensors mine = divided(matrix, first, count);
    state.add_divided("optimizer", mine);
    state.restore(path);
    EXPECT_TRUE(at::equal(mine.mine[0].part, matrix.view(-1).narrow(0, first, count)));
    EXPECT_EQ(mine.mine[1].part.item<float>(), 7);
  }
  // As whole ones, and whole ones in parts.
  TrainingState whole;
  const at::Tensor again = torch::zeros({6, 4}), count = torch::zeros({});
  whole.add_tensors("optimizer", {{"matrix", again}, {"count", count}});
  whole.restore(path);
  EXPECT_TRUE(at::equal(again, matrix));
  again.mul_(2);
  writer.write(whole, 2);
  TrainingState part;
  const DividedTensors mine = divided(matrix, 4, 4);
  part.add_divided("optimizer", mine);
  part.restore(folder / state_name(2));
  EXPECT_TRUE(at::equal(mine.mine[0].part, 2 * matrix.view(-1).narrow(0, 4, 4)));
}

TEST(DividedTensors, OfAnotherShapeAreRefused) {
  const auto folder = testing::scratch("divided_other");
  TrainingState saved, other, none;
  saved.add_divided("optimizer", divided(torch::randn({6, 4}), 0, 8));
  StateWriter(folder).write(saved, 1);
  other.add_divided("optimizer", divided(torch::randn({4, 6}), 0, 8));
  try {
    other.restore(folder / state_name(1));
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("has matrix as Float 6x4, and here it is Float 4x6"));
  }
  EXPECT_THROW(none.restore(folder / state_name(1)), UsageError) << "which has no use for it";
}

TEST(DividedTensors, AreWrittenWholeOrNotAtAll) {
  const auto folder = testing::scratch("divided_half");
  const auto of = [](std::size_t bytes, bool fails) {
    NamedSources sources;
    sources.emplace_back("numbers", TensorSource{at::kFloat, {4}, [=](const auto& write) {
                                                   const std::vector<std::byte> some(bytes);
                                                   write(std::span(some));
                                                   if (fails) throw Error("the other process has ended");
                                                 }});
    return sources;
  };
  const auto path = folder / "half.safetensors";
  EXPECT_THROW(write_safetensors(path, of(12, false)), std::logic_error) << "too few";
  EXPECT_THROW(write_safetensors(path, of(8, true)), Error);
  EXPECT_FALSE(std::filesystem::exists(path));
  write_safetensors(path, of(16, false));
  EXPECT_TRUE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace snug::state
