// Gates: what a thread's operators, and code that announces its writes, are seen by.
#include "snug/record/recording.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace snug::record {
namespace {

using Seen = std::vector<std::string>;

OperatorGate::Calls noting(Seen& seen, const std::string& who) {
  return {
      .before = [&seen, who](const c10::OperatorHandle&, const torch::jit::Stack&) { seen.push_back(who + " before"); },
      .before_write = [&seen, who](const at::Tensor&) { seen.push_back(who + " write"); }};
}

TEST(OperatorGate, AllOfAThreadSeeItsOperatorsTheNewestFirst) {
  const at::Tensor x = torch::ones({4});
  Seen seen;
  auto older = std::make_unique<OperatorGate>(noting(seen, "older"));
  auto newer = std::make_unique<OperatorGate>(noting(seen, "newer"));
  x.add_(1);
  EXPECT_EQ(seen, (Seen{"newer before", "newer write", "older before", "older write"}));
  seen.clear();
  { const Unrecorded announced({x}); }
  EXPECT_EQ(seen, (Seen{"newer write", "older write"}));
  older.reset();  // in any order
  seen.clear();
  x.exp();
  EXPECT_EQ(seen, (Seen{"newer before"}));
  newer.reset();
  seen.clear();
  x.exp();
  EXPECT_EQ(seen, Seen{});
}

TEST(OperatorGate, AnOperatorThatOneRefusesDoesNotRun) {
  const at::Tensor x = torch::ones({4});
  Seen seen;
  const OperatorGate older(noting(seen, "older"));
  {
    const OperatorGate newer({.before_write = [](const at::Tensor&) { throw std::runtime_error("no"); }});
    EXPECT_THROW(x.add_(1), std::runtime_error);
    EXPECT_EQ(seen, Seen{});
  }
  x.add_(1);
  EXPECT_FLOAT_EQ(x[0].item<float>(), 2);
}

TEST(OperatorGate, ThatEndsWhileATapeRecordsTakesNothingFromIt) {
  const at::Tensor x = torch::ones({4});
  Seen seen;
  auto gate = std::make_unique<OperatorGate>(noting(seen, "gate"));
  const auto tape = std::make_shared<Tape>(KeepSaved{});
  {
    const Recording recording(tape);
    gate.reset();
    x.exp();
    EXPECT_EQ(tape->flow().ops(), 1);
    gate = std::make_unique<OperatorGate>(noting(seen, "gate"));
  }
  x.exp();
  EXPECT_EQ(seen, Seen{"gate before"}) << "which goes on when the recording has ended";
}

TEST(OperatorGate, OfOneMayRunOperatorsThatAllSee) {
  const at::Tensor x = torch::ones({4}), y = torch::ones({4});
  Seen seen;
  const OperatorGate older(noting(seen, "older"));
  bool inside = false;
  const OperatorGate newer({.before_write = [&](const at::Tensor&) {
    if (std::exchange(inside, true)) return;
    const auto keys = c10::impl::tls_local_dispatch_key_set();
    const c10::impl::ForceDispatchKeyGuard seen_again(keys.included_, keys.excluded_.remove(kRecordingKey));
    y.mul_(2);
  }});
  x.add_(1);
  EXPECT_EQ(seen, (Seen{"older before", "older write", "older before", "older write"}));
}

}  // namespace
}  // namespace snug::record
