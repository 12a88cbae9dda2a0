// Who is told what happens on a tape, and when.
#include "snug/record/tape_observer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/record/recording.h"

namespace snug::record {
namespace {

/// Writes down the names of events.
class Listener : public TapeObserver {
 public:
  void op_begins(const Tape& /*tape*/) override { events.emplace_back("op_begins"); }
  void kernel_begins() override { events.emplace_back("kernel_begins"); }
  void kernel_ends() override { events.emplace_back("kernel_ends"); }
  void op_recorded(const Tape& tape, plan::OpId op) override {
    events.push_back("recorded " + tape.calls().call(op).traits->name);
  }
  void op_not_recorded() override { events.emplace_back("not recorded"); }
  void made(const Tape& /*tape*/, plan::OpId op, const at::Tensor& result, Run /*run*/) override {
    events.push_back("made " + std::to_string(op));
    results.push_back(result);
  }
  void settle_begins(const Tape& /*tape*/) override { events.emplace_back("settle_begins"); }
  void settle_ends() override { events.emplace_back("settle_ends"); }

  std::vector<std::string> events;
  std::vector<at::Tensor> results;
};
class ResultListener final : public Listener {
 public:
  [[nodiscard]] bool sees_results() const override { return true; }
};
class MeasuringListener final : public Listener {
 public:
  [[nodiscard]] bool measures() const override { return true; }
};

using Names = std::vector<std::string>;

TEST(TapeObserver, IsToldOfEachOperatorInOrder) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({4});
  const auto listener = std::make_shared<Listener>();
  const auto tape = std::make_shared<Tape>(KeepSaved{}, listener);
  {
    const Recording recording(tape);
    x.sin();
    x.view({2, 2});
  }
  tape->finish();
  EXPECT_EQ(listener->events, (Names{"op_begins", "kernel_begins", "kernel_ends", "recorded aten::sin", "op_begins",
                                     "kernel_begins", "kernel_ends", "not recorded", "settle_begins", "settle_ends"}));
  EXPECT_FALSE(tape->planned());
}

TEST(TapeObserver, SeesResultsIfItAsksForThem) {
  const torch::NoGradGuard no_grad;
  at::Tensor x = torch::randn({4}), y;
  const auto listener = std::make_shared<ResultListener>();
  const auto tape = std::make_shared<Tape>(KeepSaved{}, listener);
  tape->add_observer(listener);  // is there already
  {
    const Recording recording(tape);
    y = x.sin();
    y.mul_(2);
  }
  ASSERT_EQ(listener->results.size(), 2U);
  EXPECT_TRUE(listener->results[0].is_same(y));
  EXPECT_TRUE(listener->results[1].is_same(y));
  EXPECT_EQ(listener->events.back(), "made 1");
}

TEST(TapeObserver, ThatMeasuresMakesTheStepAPlannedOneUntilItIsDetached) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({4});
  const auto measuring = std::make_shared<MeasuringListener>();
  const auto other = std::make_shared<Listener>();
  const auto tape = std::make_shared<Tape>(KeepSaved{}, measuring);
  tape->add_observer(other);
  const Recording recording(tape);
  EXPECT_TRUE(tape->planned());
  x.sin();
  EXPECT_EQ(measuring->events, other->events);
  const std::size_t before = measuring->events.size();
  tape->detach();
  EXPECT_FALSE(tape->planned());
  x.cos();
  EXPECT_EQ(measuring->events.size(), before);
  EXPECT_EQ(other->events.size(), 2 * before);
}

TEST(TapeObserver, ThatIsDecidedLaterIsToldOfTheFirstOperator) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({4});
  const auto listener = std::make_shared<Listener>();
  const auto tape = std::make_shared<Tape>(DecideLater{[&] { return DecideLater::Decision{KeepSaved{}, listener}; }});
  const Recording recording(tape);
  EXPECT_TRUE(listener->events.empty());
  x.sin();
  EXPECT_EQ(listener->events.front(), "op_begins");
}

}  // namespace
}  // namespace snug::record
