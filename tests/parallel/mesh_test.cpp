#include "snug/parallel/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/models_in_parts.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using ::testing::HasSubstr;
using testing::in_processes;

/// The ranks of a group, as its processes know them.
std::vector<std::int64_t> ranks_of(ProcessGroup& group, int mine) {
  const at::Tensor all = torch::empty({group.size()}, at::kLong);
  group.run(AllGather{all, torch::full({1}, mine, at::kLong)});
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel()};
}

TEST(Mesh, HasTheGroupsAlongItsAxes) {
  in_processes(6, [](World& all) {
    // The test's world outlives the mesh.
    Mesh mesh(std::shared_ptr<World>(&all, [](World*) {}), {{"data", 3}, {"tensor", 2}});
    const int rank = all.all()->rank(), data = rank / 2, tensor = rank % 2;
    EXPECT_EQ(mesh.at("data"), data);
    EXPECT_EQ(mesh.at("tensor"), tensor);
    EXPECT_THAT(ranks_of(*mesh.group({"tensor"}), rank), ::testing::ElementsAre(2 * data, 2 * data + 1));
    EXPECT_THAT(ranks_of(*mesh.group({"data"}), rank), ::testing::ElementsAre(tensor, tensor + 2, tensor + 4));
    EXPECT_THAT(ranks_of(*mesh.group({"data", "tensor"}), rank), ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(ranks_of(*mesh.group({"tensor", "data"}), rank), ::testing::ElementsAre(0, 2, 4, 1, 3, 5));
    EXPECT_EQ(mesh.group({"data"}), mesh.group({"data"})) << "made once";
    EXPECT_THROW((void)mesh.group({"data", "data"}), UsageError);
    Mesh flat(std::shared_ptr<World>(&all, [](World*) {}), {{"data", 6}, {"context", 1}});
    EXPECT_EQ(flat.group({"context", "data"}), flat.group({"data"})) << "nobody else is along an axis of one";
    EXPECT_EQ(flat.group({"context"})->size(), 1);
    const auto said = [&](const auto& does) -> std::string {
      try {
        does();
      } catch (const UsageError& error) {
        return error.what();
      }
      return "nothing";
    };
    EXPECT_THAT(said([&] { (void)mesh.group({"context"}); }), HasSubstr("no axis context; there are data, tensor"));
    const auto made = [&](std::vector<Mesh::Axis> axes) {
      return said([&] { Mesh(std::shared_ptr<World>(&all, [](World*) {}), std::move(axes)); });
    };
    EXPECT_THAT(made({{"data", 2}, {"tensor", 2}}), HasSubstr("data 2, tensor 2 are 4 processes, and there are 6"));
    EXPECT_THAT(made({{"data", 3}, {"data", 2}}), HasSubstr("data is there twice"));
    EXPECT_THAT(made({{"data", 6}, {"tensor", 0}}), HasSubstr("0 processes along tensor"));
  });
}

/// Data parallel along one axis, layers in parts along the other: gradients of one process with all micro-batches.
TEST(Mesh, LayersInPartsAndDataParallelAreThoseOfOneProcess) {
  in_processes(4, [](World& all) {
    Mesh mesh(std::shared_ptr<World>(&all, [](World*) {}), {{"data", 2}, {"tensor", 2}});
    for (const bool sequences : {false, true}) {
      for (const testing::Made& made : testing::all_models(testing::kEven)) {
        const testing::Model one = made.make(), mine = made.make(), as_weights = made.make();
        const models::LayerParts parts{.group = tensor_group(mesh.group({"tensor"})),
                                       .between = sequences ? models::Between::Sequences : models::Between::Whole};
        const models::ModelInParts found = mine->divide(parts);
        const DataParallelOptions kSum{.combine = DataParallelOptions::Combine::Sum};
        {
          const DataParallel summands(found.summands, mesh.group({"data", "tensor"}), kSum);
          const DataParallel rest(models::others_than(found.summands, *mine), mesh.group({"data"}), kSum);
          (0.5 * testing::loss_of(*mine, testing::tokens_of(mesh.at("data")))).backward();
        }
        for (int m = 0; m < 2; ++m) (0.5 * testing::loss_of(*one, testing::tokens_of(m))).backward();
        {
          const torch::NoGradGuard no_grad;
          const auto from = one->parameters(), to = as_weights->parameters();
          for (std::size_t i = 0; i < from.size(); ++i) {
            if (from[i].grad().defined()) to[i].copy_(from[i].grad());
          }
        }
        (void)as_weights->divide(parts);
        const auto wanted = as_weights->parameters();
        const auto names = mine->named_parameters();
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          const at::Tensor& gradient = names[i].value().grad();
          if (!gradient.defined()) continue;
          EXPECT_LE((gradient - wanted[i]).norm().item<double>(), 1e-5 * wanted[i].norm().item<double>() + 1e-9)
              << made.name << " " << names[i].key();
        }
      }
    }
  });
}

}  // namespace
}  // namespace snug::parallel
