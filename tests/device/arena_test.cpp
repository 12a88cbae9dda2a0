// Steps whose blocks lie in one range of an accelerator's memory: with the bits of the plain step, at the places that
// were chosen, and in as many bytes as lie there at one time.
#include "snug/memory/arena.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "snug/models/gpt.h"
#include "snug/snug.h"
#include "tests/base/fault.h"
#include "tests/device/simulated_device.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"

namespace snug::testing {
namespace {

[[maybe_unused]] const bool kInstalledForArena = (install_simulated_devices(), true);
const c10::Device kInArena(kSimulated, 0);

memory::DeviceMemory& arena_memory() { return memory::device_memory(kInArena); }

at::Tensor bytes_there(std::int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().device(kInArena).dtype(at::kByte));
}

using Places = memory::Arena::Places;

/// An arena in use, of so many bytes, whose steps have these places.
class InUse {
 public:
  InUse(Bytes bytes, const Places& places) : arena_(arena_memory().make_arena()) {
    EXPECT_TRUE(arena_->resize(bytes, std::nullopt));
    arena_memory().use(arena_);
    begin(places);
  }
  ~InUse() { arena_->close(); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

  std::vector<memory::Arena::Asked> begin(const Places& places) {
    auto asked = arena_->end();
    arena_->begin({std::make_shared<const Places>(places)});
    return asked;
  }
  memory::Arena* operator->() { return arena_.get(); }

 private:
  std::shared_ptr<memory::Arena> arena_;
};

std::ptrdiff_t apart(const at::Tensor& from, const at::Tensor& to) {
  return static_cast<const std::byte*>(to.data_ptr()) - static_cast<const std::byte*>(from.data_ptr());
}

TEST(Arena, GivesWhatIsAskedForInOrderThePlacesThatWereChosen) {
  InUse arena(8_KiB, {{1024, 4096}, {2048, 0}, {512, memory::Arena::kElsewhere}, {1024, 4096}});
  const Bytes before = arena_memory().stats().allocated;
  std::optional<at::Tensor> first = bytes_there(1000);
  const at::Tensor second = bytes_there(2048), third = bytes_there(1);
  EXPECT_EQ(apart(second, *first), 4096);
  EXPECT_EQ(arena_memory().stats().allocated, before + 1024 + 2048 + 512);
  const void* const place = first->data_ptr();
  first.reset();
  EXPECT_EQ(bytes_there(1024).data_ptr(), place);
  EXPECT_EQ(arena->stats().placed, 3);
  EXPECT_EQ(arena->stats().elsewhere, 1);
  const auto asked = arena.begin({});
  ASSERT_EQ(asked.size(), 4U);
  EXPECT_EQ(asked[0].until, 3);
  EXPECT_EQ(asked[1].until, memory::Arena::kStays);
  EXPECT_EQ(asked[3].until, 4);
}

TEST(Arena, WhatIsThereStillIsNobodyElses) {
  InUse arena(4_KiB, {{1024, 0}, {1024, 0}});
  const at::Tensor first = bytes_there(1024).fill_(1), second = bytes_there(1024).fill_(2);
  arena.begin({{4096, 0}});
  const at::Tensor third = bytes_there(4096).fill_(3);
  EXPECT_TRUE(first.cpu().eq(1).all().item<bool>());
  EXPECT_TRUE(second.cpu().eq(2).all().item<bool>());
  EXPECT_EQ(arena->stats().placed, 0);
}

TEST(Arena, WhatIsAskedForInAnotherOrderLiesWhereThereIsRoom) {
  InUse arena(4_KiB, {{1024, 0}, {1024, 2048}});
  const at::Tensor first = bytes_there(1024), other = bytes_there(512), second = bytes_there(1024);
  EXPECT_EQ(apart(first, other), 1024);
  EXPECT_EQ(apart(first, second), 1536);
  EXPECT_EQ(arena->stats().placed, 1);
}

TEST(Arena, OfSeveralOrdersFollowsTheOneThatAgrees) {
  memory::Arena::Places one = {{1024, 0}, {1024, 1024}}, other = {{1024, 0}, {512, 2048}};
  InUse arena(4_KiB, {});
  arena->end();
  arena->begin({std::make_shared<const Places>(one), std::make_shared<const Places>(other)});
  const at::Tensor first = bytes_there(1024), second = bytes_there(512);
  EXPECT_EQ(apart(first, second), 2048);
  EXPECT_EQ(arena->stats().placed, 2);
}

TEST(Arena, ServesWhereNothingElseIsLeft) {
  const std::optional<Bytes> before = arena_memory().stats().limit;
  {
    InUse arena(64_KiB, {{1024, memory::Arena::kElsewhere}});
    arena_memory().release_cached();
    const Bytes reserved = arena_memory().stats().mapped;
    arena_memory().set_limit(reserved);  // all of what is free lies in the arena
    const at::Tensor there = bytes_there(1024);
    EXPECT_EQ(arena_memory().stats().mapped, reserved);
    EXPECT_EQ(arena->stats().placed, 0);
  }
  arena_memory().set_limit(before);
}

TEST(Arena, GoesWithTheLastThatLiesThere) {
  arena_memory().release_cached();
  const Bytes before = arena_memory().stats().mapped;
  std::optional<at::Tensor> stays;
  at::Tensor beside;
  {
    const InUse arena(64_KiB, {{1024, 0}, {512, memory::Arena::kElsewhere}});
    stays = bytes_there(1024);
    beside = bytes_there(512);
  }
  arena_memory().release_cached();
  EXPECT_EQ(arena_memory().stats().mapped, before + 64_KiB + 512);
  stays.reset();
  arena_memory().release_cached();
  EXPECT_EQ(arena_memory().stats().mapped, before + 512) << "what lies elsewhere does not hold it";
}

// Whenever the streams come to their work, what another one reads is not written before.
TEST(Arena, WaitsForOtherStreamsThatUseWhatWasGivenBack) {
  const auto run = [&] {
    InUse arena(8_KiB, {{4096, 0}, {4096, memory::Arena::kElsewhere}, {4096, 0}});
    const c10::Stream other = c10::impl::VirtualGuardImpl(kSimulated).getNewStream(kInArena, 0);
    at::Tensor read;
    {
      const at::Tensor first = bytes_there(4096).fill_(1);
      const c10::Stream own = c10::impl::VirtualGuardImpl(kSimulated).getStream(kInArena);
      const memory::StreamMark written(own);
      const c10::StreamGuard guard(other);
      written.let_wait(other);
      read = first.clone();
      c10::impl::VirtualGuardImpl(kSimulated).recordDataPtrOnStream(first.storage().data_ptr(), other);
    }
    const at::Tensor second = bytes_there(4096).fill_(2);
    EXPECT_EQ(arena->stats().placed, 2);
    Streams::instance().wait_for_all();
    return read.cpu().eq(1).all().item<bool>() && second.cpu().eq(2).all().item<bool>();
  };
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Streams::instance().set_order(seed);
    EXPECT_TRUE(run()) << seed;
  }
  // The wait is what it is: the last of those that the run waits for.
  int seen = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Streams::instance().set_order(seed);
    Streams::instance().leave_out_wait(1);
    seen += run() ? 0 : 1;
    Streams::instance().leave_out_wait(std::nullopt);
  }
  EXPECT_GT(seen, 0);
  Streams::instance().set_order(std::nullopt);
}

TEST(Arena, WhatAThreadOfItsOwnAsksForIsNoPartOfTheOrder) {
  InUse arena(4_KiB, {{1024, 0}, {1024, 2048}});
  const at::Tensor first = bytes_there(1024);
  at::Tensor loaded;
  std::thread([&] { loaded = bytes_there(512); }).join();
  const at::Tensor second = bytes_there(1024);
  EXPECT_EQ(apart(first, second), 2048);
  EXPECT_EQ(arena->stats().placed, 2);
  EXPECT_EQ(arena->stats().elsewhere, 0);
}

/// A GPT that trains there.
struct Trained {
  explicit Trained(double dropout = 0.1) {
    torch::manual_seed(3);
    model = models::Gpt(models::GptOptions{
        .blocks = 3, .width = 64, .heads = 2, .sequence = 64, .vocabulary = 512, .dropout = dropout});
    model->to(kInArena);
    optimizer.emplace(model->parameters(), torch::optim::AdamWOptions(1e-3));
  }
  at::Tensor batch(std::int64_t rows, int step) const {
    return torch::arange(rows * 64).remainder(509 - step).reshape({rows, 64}).to(kInArena);
  }
  at::Tensor loss(const at::Tensor& tokens) { return model->loss(tokens, tokens.roll(-1, 1)); }

  /// Losses of so many steps, and the weights after them.
  std::vector<at::Tensor> train(
      int steps, const std::function<std::int64_t(int)>& rows,
      const std::function<at::Tensor(const at::Tensor&)>& backward,
      const std::function<void(int)>& after = [](int) {}) {
    std::vector<at::Tensor> found;
    for (int i = 0; i < steps; ++i) {
      const at::Tensor tokens = batch(rows(i), i);
      optimizer->zero_grad();
      torch::manual_seed(17 + i);
      found.push_back(backward(tokens).cpu());
      optimizer->step();
      after(i);
    }
    for (const at::Tensor& p : model->parameters()) found.push_back(p.detach().cpu());
    return found;
  }
  std::vector<at::Tensor> train_plainly(int steps, const std::function<std::int64_t(int)>& rows) {
    return train(steps, rows, [&](const at::Tensor& tokens) {
      const at::Tensor value = loss(tokens);
      value.backward();
      return value.detach();
    });
  }

  models::Gpt model{nullptr};
  std::optional<torch::optim::AdamW> optimizer;
};

std::int64_t eight_rows(int /*step*/) { return 8; }

/// Steps under a plan for a share of what they take without one.
class Planned {
 public:
  Planned(Trained& trained, double share, bool arena)
      : trained_(trained), session_(fit(share * static_cast<double>(unplanned(trained)), arena)) {}

  static Bytes unplanned(Trained& trained) {
    const Session session =
        snug::fit([&](const at::Tensor& tokens) { return trained.loss(tokens); }, trained.batch(8, 0),
                  {.budget = 1_GiB, .device = kInArena, .optimizer = *trained.optimizer});
    return session.plan().unplanned_peak;
  }
  at::Tensor operator()(const at::Tensor& tokens) {
    return session_.backward([&](const at::Tensor& batch) { return trained_.loss(batch); }, tokens);
  }
  Session& session() { return session_; }
  [[nodiscard]] replay::StepArena::Stats arena() const { return session_.arena().value(); }

 private:
  [[nodiscard]] Session fit(double budget, bool arena) const {
    return snug::fit(
        [this](const at::Tensor& tokens) { return trained_.loss(tokens); }, trained_.batch(8, 0),
        {.budget = static_cast<Bytes>(budget), .device = kInArena, .arena = arena, .optimizer = *trained_.optimizer});
  }
  Trained& trained_;
  Session session_;
};

TEST(StepsInAnArena, HaveThePlainBitsAndReserveWhatIsPlanned) {
  const auto expected = Trained().train_plainly(8, &eight_rows);
  for (const double share : {0.7, 1.2}) {
    SCOPED_TRACE(share);
    Trained trained;
    Planned planned(trained, share, true);
    memory::Stats before;
    const auto found = trained.train(8, &eight_rows, std::ref(planned), [&](int step) {
      if (step != 5) return;
      arena_memory().release_cached();
      arena_memory().reset_peak();
      before = arena_memory().stats();
    });
    expect_same(found, expected);
    const replay::StepArena::Stats arena = planned.arena();
    EXPECT_GT(arena.bytes, 0);
    EXPECT_LE(static_cast<double>(arena.bytes), 1.01 * static_cast<double>(arena.highest));
    EXPECT_GT(arena.placed, 150);
    EXPECT_LT(arena.elsewhere, 10);
    const memory::Stats stats = arena_memory().stats();
    EXPECT_LE(static_cast<double>(stats.mapped_peak), 1.01 * static_cast<double>(stats.allocated_peak));
    EXPECT_LE(stats.allocated_peak, planned.session().predicted_peak());
    EXPECT_EQ(planned.session().last_step().evictions, 0);
    EXPECT_EQ(planned.session().last_step().replayed_ops > 0, share < 1);
  }
}

TEST(StepsInAnArena, TakeFewerBytesOfTheDeviceThanWithoutOne) {
  const auto reserved = [](bool arena) {
    arena_memory().release_cached();
    Trained trained;
    Planned planned(trained, 1.0, arena);
    arena_memory().set_limit(std::nullopt);  // what is kept does not have to be given back
    const Bytes before = arena_memory().stats().allocated;
    trained.train(8, &eight_rows, std::ref(planned), [&](int step) {
      if (step == 5) arena_memory().reset_peak();
    });
    return arena_memory().stats().mapped_peak - before;
  };
  const Bytes with = reserved(true), without = reserved(false);
  EXPECT_LT(static_cast<double>(with), 0.9 * static_cast<double>(without));
}

TEST(StepsInAnArena, OfSeveralShapesHaveTheirPlacesEach) {
  const auto rows = [](int step) { return step % 2 == 0 ? 8 : 4; };
  const auto expected = Trained().train_plainly(12, rows);
  Trained trained;
  Planned planned(trained, 0.8, true);
  std::vector<std::int64_t> elsewhere;
  const auto found =
      trained.train(12, rows, std::ref(planned), [&](int /*step*/) { elsewhere.push_back(planned.arena().elsewhere); });
  expect_same(found, expected);
  EXPECT_LT(elsewhere[10], 10);
  EXPECT_LT(elsewhere[11], 10);
}

TEST(StepsInAnArena, HavePlainBitsWheneverStreamsComeToTheirWork) {
  const auto expected = Trained().train_plainly(6, &eight_rows);
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    Trained trained;
    Planned planned(trained, 0.7, true);
    Streams::instance().set_order(seed);
    const auto found = trained.train(6, &eight_rows, std::ref(planned));
    Streams::instance().set_order(std::nullopt);
    expect_same(found, expected);
  }
}

TEST(StepsInAnArena, OfTwoModelsShareIt) {
  const auto expected = Trained().train_plainly(8, &eight_rows);
  Trained one, other;
  Planned first(one, 1.8, true), second(other, 1.8, true);
  const auto of_one = one.train(
      8, &eight_rows,
      [&](const at::Tensor& tokens) {
        torch::manual_seed(17 + static_cast<int>(508 - tokens.max().item<std::int64_t>()));
        return first(tokens);
      },
      [&](int step) {
        const at::Tensor tokens = other.batch(8, step);
        other.optimizer->zero_grad();
        torch::manual_seed(17 + step);
        second(tokens);
        other.optimizer->step();
        EXPECT_EQ(second.session().last_step().evictions, 0);
      });
  expect_same(of_one, expected);
  for (std::size_t i = 0; i < other.model->parameters().size(); ++i)
    EXPECT_TRUE(same_bits(other.model->parameters()[i].detach().cpu(), expected[8 + i])) << i;
  EXPECT_GT(second.arena().placed, 150);
}

TEST(StepsInAnArena, LeaveWhatTheProgramKeepsAlone) {
  Trained trained(0), again(0);
  Planned planned(trained, 0.8, true);
  std::vector<at::Tensor> kept, copies;
  trained.train(9, &eight_rows, std::ref(planned), [&](int step) {
    if (step % 3 != 2) return;  // a gradient, which lies in the arena
    kept.push_back(trained.model->parameters().front().grad());
    copies.push_back(kept.back().cpu());
  });
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(same_bits(kept[i].cpu(), copies[i])) << i;
}

TEST(StepsInAnArena, AnExceptionInOneOfThemChangesNothing) {
  const auto expected = Trained().train_plainly(8, &eight_rows);
  Trained trained;
  Planned planned(trained, 0.7, true);
  const auto found = trained.train(8, &eight_rows, [&](const at::Tensor& tokens) {
    EXPECT_ANY_THROW(planned.session().backward([&]() -> at::Tensor {
      const at::Tensor some = trained.loss(tokens);
      throw std::runtime_error("stop");
    }));
    torch::manual_seed(17 + static_cast<int>(509 - tokens.max().item<std::int64_t>() - 1));
    return planned(tokens);
  });
  EXPECT_EQ(found.size(), expected.size());
  expect_same({found.begin() + 8, found.end()}, {expected.begin() + 8, expected.end()});
}

TEST(StepsInAnArena, AreForAccelerators) {
  const at::Tensor weight = at::ones({8}, at::TensorOptions().requires_grad(true));
  EXPECT_EQ(
      fault([&] {
        (void)snug::fit([&](const at::Tensor& x) { return (weight * x).sum(); }, at::ones({8}),
                        {.budget = 1_GiB, .device = c10::kCPU, .arena = true});
      }),
      "arena: it is for accelerators, and the budget is for the memory of the cpu, whose pages are moved to where a "
      "range is needed; leave it out");
}

}  // namespace
}  // namespace snug::testing
