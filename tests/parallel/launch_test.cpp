#include "snug/parallel/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "snug/base/errors.h"

namespace snug::parallel {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Launched> by(const Variables& variables) {
  return launched([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  try {
    (void)by(variables);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "taken";
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "12355"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Launch, IsNobodysWhereNothingSaysSo) {
  EXPECT_EQ(by({}), std::nullopt);
  EXPECT_EQ(by({{"MASTER_ADDR", "node7"}, {"LOCAL_RANK", "0"}}), std::nullopt);
}

TEST(Launch, ByTorchrun) {
  const Launched expected{
      .rank = 5, .size = 8, .local_rank = 1, .local_size = 4, .host = "node7", .port = 12355, .launcher = "torchrun"};
  EXPECT_EQ(by(kTorchrun), expected);
  Launched at_agent = expected;
  at_agent.host_waits = true;
  EXPECT_EQ(by(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True")), at_agent);
}

TEST(Launch, SaysWhichVariableIsMissingOrWrong) {
  for (const char* const name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    EXPECT_THAT(refusal(without(kTorchrun, name)), ::testing::HasSubstr(name)) << name;
  EXPECT_THAT(refusal(with(kTorchrun, "RANK", "8")), ::testing::HasSubstr("RANK = \"8\""));
  EXPECT_THAT(refusal(with(kTorchrun, "RANK", "-1")), ::testing::HasSubstr("from 0 to 7"));
  EXPECT_THAT(refusal(with(kTorchrun, "WORLD_SIZE", "many")), ::testing::HasSubstr("WORLD_SIZE = \"many\""));
  EXPECT_THAT(refusal(with(kTorchrun, "MASTER_PORT", "70000")), ::testing::HasSubstr("from 1 to 65535"));
  EXPECT_THAT(refusal(with(kTorchrun, "LOCAL_RANK", "1x")), ::testing::HasSubstr("LOCAL_RANK"));
}

const Variables kSrun = {{"SLURM_PROCID", "3"},       {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_LOCALID", "1"},      {"SLURM_STEP_ID", "2"},
                         {"SLURM_JOB_ID", "1234567"}, {"SLURM_STEP_NODELIST", "rack[02-04,9]x,login"}};

TEST(Launch, BySrun) {
  const auto found = by(kSrun);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->size, 4);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->host, "rack02x");
  EXPECT_EQ(found->launcher, "srun");
  EXPECT_EQ(by(with(kSrun, "SLURM_PROCID", "0"))->port, found->port) << "all of a step meet at one port";
  EXPECT_NE(by(with(kSrun, "SLURM_JOB_ID", "1234568"))->port, found->port);
  EXPECT_NE(by(with(kSrun, "SLURM_STEP_ID", "3"))->port, found->port);
  EXPECT_EQ(by(with(kSrun, "MASTER_PORT", "4000"))->port, 4000);
  EXPECT_EQ(by(with(kSrun, "MASTER_ADDR", "head"))->host, "head");
}

TEST(Launch, BySrunWhateverElseSlurmAndScriptsSet) {
  EXPECT_EQ(by(with(with(kSrun, "PMI_RANK", "3"), "PMI_SIZE", "4"))->launcher, "srun") << "of its PMI-2 plugin";
  EXPECT_EQ(by(with(kSrun, "WORLD_SIZE", "4"))->launcher, "srun") << "scripts export it";
  EXPECT_EQ(by(with(kSrun, "SLURM_STEP_NUM_NODES", "1"))->local_size, 4) << "all on one machine";
}

TEST(Launch, IsNotSrunsInAJobsScript) { EXPECT_EQ(by(without(kSrun, "SLURM_STEP_ID")), std::nullopt); }

TEST(Launch, ByMpirun) {
  const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const Launched expected{
      .rank = 1, .size = 2, .local_rank = 1, .local_size = 2, .host = "127.0.0.1", .port = 29500, .launcher = "mpirun"};
  EXPECT_EQ(by(open_mpi), expected);
  EXPECT_EQ(by({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}), expected);
  const int port = by(with(open_mpi, "PMIX_NAMESPACE", "prterun-7"))->port;
  EXPECT_NE(port, by(with(open_mpi, "PMIX_NAMESPACE", "prterun-8"))->port) << "runs apart";
  EXPECT_TRUE(port >= 29500 && port < 39500);
  // On several machines the address is needed.
  EXPECT_THAT(refusal(with(with(open_mpi, "OMPI_COMM_WORLD_SIZE", "4"), "OMPI_COMM_WORLD_RANK", "3")),
              ::testing::HasSubstr("MASTER_ADDR is not set"));
}

TEST(Launch, TorchrunInsideOfSrunCounts) {
  Variables both = kTorchrun;
  both.insert(kSrun.begin(), kSrun.end());
  EXPECT_EQ(by(both)->launcher, "torchrun");
}

TEST(FirstHost, IsTheFirstOfSlurmsList) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("node7,node8"), "node7");
  EXPECT_EQ(first_host("node[07-09,12],login"), "node07");
  EXPECT_EQ(first_host("node[3,5-6]"), "node3");
  EXPECT_EQ(first_host("login,node[3,5-6]"), "login");
  EXPECT_EQ(first_host("rack[1-2]node[03-4]-ib"), "rack1node03-ib");
  EXPECT_EQ(first_host(""), "");
}

}  // namespace
}  // namespace snug::parallel
