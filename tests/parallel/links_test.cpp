// How long collectives take on links, against the closed forms of rings and of messages in pairs.
#include "snug/parallel/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/parallel/link_text.h"

namespace snug::parallel {
namespace {

using ::testing::HasSubstr;

constexpr double kRate = 1e9, kLate = 1e-5, kFar = 1e8, kLateFar = 1e-4;
constexpr std::int64_t kNumbers = 4 * 3 * 5 * 7 * 8 * 64;
constexpr double kOfAll = 4.0 * kNumbers;

Links links(int per_machine) {
  return {.within = {.bytes_per_second = kRate, .seconds_per_message = kLate},
          .between = {.bytes_per_second = kFar, .seconds_per_message = kLateFar},
          .per_machine = per_machine};
}

std::vector<int> ranks(int count, int step = 1) {
  std::vector<int> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = i * step;
  return all;
}

TEST(Links, OneMachineTakesAsLongAsRingsDo) {
  const at::Tensor all = at::zeros({kNumbers});
  for (const int n : {2, 3, 4, 5, 8}) {
    const at::Tensor part = at::zeros({kNumbers / n});
    const auto seconds = [&](const Collective& what) { return seconds_of(what, ranks(n), 0, links(n)); };
    const double share = kOfAll * (n - 1) / n / kRate, messages = (n - 1) * kLate;
    EXPECT_NEAR(seconds(AllReduce{all}), 2 * (share + messages), 1e-12) << n;
    EXPECT_NEAR(seconds(AllGather{all.narrow(0, 0, part.numel() * n), part}),
                part.numel() * 4.0 * (n - 1) / kRate + messages, 1e-12);
    EXPECT_NEAR(seconds(ReduceScatter{part, all}), share + messages, 1e-12) << n;
    EXPECT_NEAR(seconds(AllToAll{all, all}), share + messages, 1e-12) << n;
    EXPECT_NEAR(seconds(Send{part, 1}), part.numel() * 4.0 / kRate + kLate, 1e-12) << n;
    EXPECT_GT(seconds(Broadcast{all, 0}), kOfAll / kRate);
    EXPECT_LT(seconds(Barrier{}), n * kLate);
  }
  EXPECT_EQ(seconds_of(AllReduce{all}, {3}, 0, links(8)), 0) << "one alone";
}

TEST(Links, BetweenMachinesAGroupHasAsManyWaysAsMembersOnEach) {
  const at::Tensor all = at::zeros({kNumbers});
  const auto bytes_of_ring = [&](int n) { return 2 * kOfAll * (n - 1) / n; };
  // Eight on two machines: four ways.
  const double eight = seconds_of(AllReduce{all}, ranks(8), 0, links(4));
  EXPECT_NEAR(eight, bytes_of_ring(8) / kFar / 4 + 14 * (2 * kLateFar + 6 * kLate) / 8, 1e-9);
  // Two, one on each: one way.
  const double two = seconds_of(AllReduce{all}, ranks(2, 4), 0, links(4));
  EXPECT_NEAR(two, bytes_of_ring(2) / kFar + 2 * kLateFar, 1e-9);
  // The same two beside each other.
  EXPECT_NEAR(seconds_of(AllReduce{all}, ranks(2), 0, links(4)), bytes_of_ring(2) / kRate + 2 * kLate, 1e-9);
  // Messages go by the way to their process.
  EXPECT_NEAR(seconds_of(Send{all, 1}, ranks(8), 0, links(4)), kOfAll / kRate + kLate, 1e-12);
  EXPECT_NEAR(seconds_of(Receive{all, 5}, ranks(8), 0, links(4)), kOfAll / kFar + kLateFar, 1e-12);
  EXPECT_NEAR(seconds_of_message(static_cast<Bytes>(kOfAll), 3, 4, links(4)), kOfAll / kFar + kLateFar, 1e-12);
  EXPECT_NEAR(seconds_of_message(static_cast<Bytes>(kOfAll), 4, 5, links(4)), kOfAll / kRate + kLate, 1e-12);
  EXPECT_TRUE(leaves_machine(Receive{all, 5}, ranks(8), 0, links(4)));
  EXPECT_FALSE(leaves_machine(Receive{all, 5}, ranks(8), 4, links(4)));
  EXPECT_TRUE(leaves_machine(Barrier{}, ranks(8), 0, links(4)));
  EXPECT_FALSE(leaves_machine(Barrier{}, {4, 5}, 0, links(4)));
}

TEST(Links, AreReadFromText) {
  const auto expect = [](const std::string& text, double bytes, double seconds) {
    const Link link = parse_link(text, 0.07);
    EXPECT_NEAR(link.bytes_per_second / bytes, 1, 1e-12) << text;
    EXPECT_NEAR(link.seconds_per_message, seconds, 1e-15) << text;
  };
  expect("400Gbps", 50e9, 0.07);
  expect("50GBps/3us", 50e9, 3e-6);
  expect("2 GiBps/0.5ms", 2.0 * (1 << 30), 0.5e-3);
  expect("900GB/s", 900e9, 0.07);
  expect("1.5TB/s/250ns", 1.5e12, 250e-9);
  expect("1000kbps/0s", 125000, 0);
  for (const std::string text :
       {"", "400", "400Gb", "Gbps", "-1Gbps", "0Gbps", "1kbps", "1GBps/1s", "400Gbps/", "400Gbps/3", "400Gbps/-1us",
        "400gbps", "1e999Gbps", "nanGbps", "4Gbps/1us/2us", "1e200TBps", "1GBps/1e9s"}) {
    try {
      (void)parse_link(text, 0);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("\"" + text + "\" is no link")) << text;
    }
  }
  const Link link{.bytes_per_second = 1.25e9, .seconds_per_message = 1234e-6};
  EXPECT_EQ(to_text(link), "1.25GBps/1234us");
  EXPECT_DOUBLE_EQ(parse_link(to_text(link), 0).seconds_per_message, link.seconds_per_message);
}

}  // namespace
}  // namespace snug::parallel
