// Shards of groups that have all of it each, whose sums are added up.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "snug/parallel/data_parallel.h"
#include "snug/parallel/mesh.h"
#include "tests/parallel/processes.h"
#include "tests/parallel/shards_of.h"
#include "tests/parallel/trained_gpt.h"

namespace snug::parallel {
namespace {

using testing::batch_of;
using testing::expect_same;
using testing::in_processes;
using testing::in_shards;
using testing::take_shards;
using testing::Trained;

/// Hybrid shards: each pair has all of it, and sums of pairs are added up once, behind the last micro-batch.
TEST(HybridShards, OfPairsAreThoseOfAllOnceTheirSumsAreAddedUp) {
  in_processes(4, [](World& world) {
    Trained one, mine;
    std::vector<at::Tensor> expected;
    for (const int pair : {0, 1}) {
      for (int micro = 0; micro < 2; ++micro) {
        for (const int rank : {2 * pair, 2 * pair + 1}) one.backward(batch_of(rank, micro), 0.125);
      }
      const auto of_pair = one.take_gradients();
      for (std::size_t i = 0; i < of_pair.size(); ++i)
        pair == 0 ? expected.push_back(of_pair[i]) : void(expected[i] += of_pair[i]);
    }
    Mesh mesh(std::shared_ptr<World>(&world, [](auto*) {}), {{"copy", 2}, {"shard", 2}});
    DataParallelOptions options{
        .combine = DataParallelOptions::Combine::Sum, .leaves = DataParallelOptions::Leaves::Shards, .bucket = 64_KiB};
    DataParallel parallel(mine.parameters(), mesh.group({"shard"}), options);
    std::vector<at::Tensor> own;
    std::int64_t elements = 0, of_model = 0;
    for (const Shard& shard : parallel.shards()) own.push_back(shard.tensor), elements += shard.tensor.numel();
    for (const at::Tensor& p : mine.parameters()) of_model += p.numel();
    const at::Tensor of_pair = torch::full({}, elements, at::kLong);
    mesh.group({"shard"})->run(AllReduce{of_pair});
    EXPECT_EQ(of_pair.item<std::int64_t>(), of_model);
    options.leaves = DataParallelOptions::Leaves::Gradients;
    DataParallel over_copies(own, mesh.group({"copy"}), options);
    for (int step = 0; step < 2; ++step) {
      for (int micro = 0; micro < 2; ++micro) mine.backward(batch_of(world.all()->rank(), micro), 0.125);
      over_copies.hand_in(Reduction::Purpose::Trial);
      over_copies.hand_in();
      expect_same(in_shards(mine.parameters(), expected, parallel.shards()), take_shards(parallel.shards()), "pairs");
    }
    EXPECT_EQ(over_copies.counts().passes, 2) << "a trial is none";
  });
}

}  // namespace
}  // namespace snug::parallel
