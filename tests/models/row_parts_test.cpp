#include "snug/models/row_parts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/models/gpt.h"
#include "snug/models/llama.h"
#include "snug/plan/planner.h"
#include "snug/replay/record_step.h"
#include "tests/models/tiny_llama.h"

namespace snug::models {
namespace {

TEST(RowParts, AreOfSoManyRowsAndInTheirOrder) {
  const at::Tensor x = torch::arange(2 * 7 * 3).view({2, 7, 3}).to(at::kFloat);
  std::vector<std::int64_t> seen;
  const auto wider = [&](const at::Tensor& part) {
    seen.push_back(part.size(0));
    return at::cat({part, part * 2}, 1);
  };
  const at::Tensor found = in_parts(x, 4, wider);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{4, 4, 4, 2}));
  EXPECT_TRUE(found.equal(at::cat({x, x * 2}, 2)));
  for (const std::int64_t rows : {0, 14, 15}) {
    seen.clear();
    (void)in_parts(x, rows, [&](const at::Tensor& part) {
      seen.push_back(part.dim());
      return part;
    });
    EXPECT_EQ(seen, std::vector<std::int64_t>{3}) << "as it is, for " << rows;
  }
}

/// The loss and every gradient of a model whose feed-forward parts have so many rows at a time.
template <class Model>
std::vector<at::Tensor> gradients_by(Model& model, std::int64_t rows, const at::Tensor& tokens) {
  model->zero_grad();
  model->feed_forward_by(rows);
  const at::Tensor loss = model->loss(tokens.slice(1, 0, -1), tokens.slice(1, 1));
  loss.backward();
  std::vector<at::Tensor> all{loss.detach()};
  for (const at::Tensor& p : model->parameters()) all.push_back(p.grad().clone());
  return all;
}

template <class Model>
void expect_same_but_for_sums(Model model) {
  const at::Tensor tokens = torch::randint(50, {2, 25});
  const auto whole = gradients_by(model, 0, tokens), parts = gradients_by(model, 16, tokens);
  ASSERT_EQ(whole.size(), parts.size());
  // Rows by themselves, and only what is added up over them in another order; in double.
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::allclose(whole[i], parts[i], 1e-10, 1e-12)) << i;
}

TEST(RowParts, OfModelsGiveTheSameGradients) {
  torch::manual_seed(0);
  Gpt gpt(GptOptions{.blocks = 2, .width = 32, .heads = 2, .sequence = 32, .vocabulary = 50});
  gpt->to(at::kDouble);
  expect_same_but_for_sums(gpt);
  Llama llama(tiny_llama());
  llama->to(at::kDouble);
  expect_same_but_for_sums(llama);
}

TEST(RowParts, LowerTheFloorOfALongSequence) {
  torch::manual_seed(0);
  LlamaOptions options = tiny_llama();
  options.width = 64, options.rotary.width = 16, options.inner_width = 1024, options.sequence = 1024;
  Llama model(options);
  const at::Tensor tokens = torch::randint(64, {1, 1025});
  const auto step_bytes_by = [&](std::int64_t rows) {
    model->feed_forward_by(rows);
    const auto recorded = replay::record_step([&] { return model->loss(tokens.slice(1, 0, -1), tokens.slice(1, 1)); },
                                              memory::device_memory(c10::kCPU));
    return plan::Planner(recorded.graph, "optimal").floor(recorded.graph) - recorded.graph.static_bytes;
  };
  // Of 1,024 rows of 1,024 numbers: what the activation and the product are of, their gradients, the product.
  const Bytes whole = step_bytes_by(0), parts = step_bytes_by(128);
  EXPECT_GT(whole, 20_MiB);
  EXPECT_LT(parts, whole / 2);
}

}  // namespace
}  // namespace snug::models
