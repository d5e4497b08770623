//===- MpiTest.cpp - Ranks as processes -----------------------------------===//

#include "test/runtime/TestFiles.h"
#include <chrono>
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

using namespace test;
using nlohmann::json;
using testing::HasSubstr;

namespace {
struct Mpi : testing::Test {
  TempDir dir;

  void SetUp() override {
    writePipeWeights(dir / "pipe.weights");
    writeFile(dir / "d.safetensors", tensorFile(pipeData(19, 5)));
  }

  static std::vector<std::string>
  environment(std::vector<std::string> more = {}) {
    for (const char *text :
         {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "OMPI_MCA_rmaps_base_oversubscribe=1",
          "MGQ_PLUGIN_DIR=" MGQ_PLUGIN_FOLDER})
      more.emplace_back(text);
    return more;
  }

  /// A rank's words: the toy and its options.
  static std::vector<std::string> toy(std::vector<std::string> more) {
    std::vector<std::string> all = {MGQ_TOY_PATH, "--data", "d.safetensors",
                                    "--weights=.", "--threads=1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static std::vector<std::string> mpirun(int ranks,
                                         const std::vector<std::string> &toy) {
    std::vector<std::string> all = {"!mpirun", "-n", std::to_string(ranks)};
    all.insert(all.end(), toy.begin(), toy.end());
    return all;
  }

  RunResult run(int ranks, const std::vector<std::string> &plan,
                std::vector<std::string> more) {
    return runToy(dir, mpirun(ranks, toy(std::move(more))), environment(plan));
  }
};
} // namespace

TEST_F(Mpi, MessagesArrive) {
  RunResult result = runToy(
      dir, {"!mpirun", "-n", "2", "--bind-to", "none", MGQ_PROCESS_CHECK_PATH},
      environment());
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.output, "ok\n");
}

// Ranks that wait together for a stopped one hear each other's heartbeats.
TEST_F(Mpi, StoppedRankIsMissed) {
  auto errors = [&](const std::string &how) {
    auto start = std::chrono::steady_clock::now();
    RunResult result = runToy(dir,
                              {"!mpirun", "-n", "4", "--bind-to", "none",
                               MGQ_PROCESS_CHECK_PATH, how},
                              environment());
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(10));
    EXPECT_NE(result.status, 0);
    return result.error + result.output;
  };
  EXPECT_THAT(errors("stop"),
              HasSubstr("waits for the others: no sign of life for 1 s"));
  // Whoever says it, it is the one at the end of the chain.
  std::string text = errors("chain");
  EXPECT_THAT(text, HasSubstr("rank 2 waits for rank 3: no sign of life"));
  EXPECT_THAT(text, testing::Not(HasSubstr("waits for rank 1")));
  EXPECT_THAT(text, testing::Not(HasSubstr("waits for rank 2")));
}

TEST_F(Mpi, ProcessesChangeNoBit) {
  for (std::vector<std::string> plan :
       {std::vector<std::string>{"TOY_STAGES=2"},
        {"TOY_STAGES=2", "TOY_REPLICAS=2", "TOY_MICRO_BATCHES=2",
         "TOY_SPLIT=1"}}) {
    SCOPED_TRACE(testing::PrintToString(plan));
    auto options = [](const std::string &name) {
      return std::vector<std::string>{
          "--steps=9",   "--output-dir=" + name, "--log-file=" + name + ".log",
          "--eval-data", "d.safetensors",        "--trace=" + name + ".trace",
          "--summary=s"};
    };
    RunResult threads = runToy(
        dir,
        [&] {
          auto words = toy(options("threads"));
          words.erase(words.begin());
          return words;
        }(),
        plan);
    ASSERT_EQ(threads.status, 0) << threads.error;
    int ranks = static_cast<int>(2 * (plan.size() > 1 ? 2 : 1));
    RunResult result = run(ranks, plan, options("mpi"));
    ASSERT_EQ(result.status, 0) << result.error;
    EXPECT_THAT(result.output, HasSubstr("bubble"));
    EXPECT_EQ(readLog(dir / "mpi.log"), readLog(dir / "threads.log"));
    for (const char *name : {"model", "optimizer"}) {
      std::string file = std::string("/checkpoint-9/") + name + ".safetensors";
      EXPECT_EQ(readFile(dir / "mpi" + file), readFile(dir / "threads" + file));
    }
    json summary = json::parse(readFile(dir / "s"));
    EXPECT_EQ(summary["ranks"].size(), static_cast<size_t>(ranks));
    EXPECT_GT(summary["ranks"][1]["peak_bytes"].get<int64_t>(), 0);
    json trace = json::parse(readFile(dir / "mpi.trace"));
    EXPECT_GT(trace["traceEvents"].size(), 50u);
  }
  // Resume, in one process.
  std::vector<std::string> words = toy(
      {"--steps=12", "--output-dir=mpi", "--resume-from-checkpoint=latest"});
  words.erase(words.begin());
  EXPECT_EQ(runToy(dir, words,
                   {"TOY_STAGES=1", "TOY_REPLICAS=2", "TOY_MICRO_BATCHES=2"})
                .status,
            0);
  EXPECT_TRUE(fileExists(dir / "mpi/checkpoint-12"));
}

TEST_F(Mpi, FaultsEndAllProcesses) {
  auto fault = [&](const std::vector<std::string> &words,
                   const std::vector<std::string> &plan) {
    auto start = std::chrono::steady_clock::now();
    RunResult result = runToy(dir, words, environment(plan));
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(10));
    EXPECT_NE(result.status, 0);
    if (fileExists(dir / "out"))
      for (const std::string &name : namesIn(dir / "out"))
        EXPECT_EQ(name[0], '.');
    return result.error + result.output;
  };
  auto two = [&](std::vector<std::string> more) {
    more.push_back("--steps=200");
    more.push_back("--output-dir=out");
    return mpirun(2, toy(more));
  };
  EXPECT_THAT(fault(two({}), {"TOY_STAGES=2", "TOY_INDEX=1"}),
              HasSubstr("error: rank 1: index 9 is outside [0, 8)"));
  EXPECT_THAT(fault(two({}), {"TOY_STAGES=2", "TOY_DIE=1"}),
              HasSubstr("rank 1"));
  EXPECT_THAT(fault(two({}), {"TOY_STAGES=2", "TOY_DIE=0"}),
              HasSubstr("rank 0"));
  EXPECT_THAT(fault(two({"--timeout=1"}), {"TOY_STAGES=2", "TOY_STALL=1"}),
              HasSubstr("error: rank 0 waits for rank 1: no sign of life for 1 "
                        "s"));
  EXPECT_THAT(fault(two({}), {"TOY_STAGES=2", "TOY_HUGE=1"}),
              HasSubstr("error: rank 1: the plan needs 1024.00 TiB"));
  EXPECT_THAT(fault(two({"--log-file=/dev/full"}), {"TOY_STAGES=2"}),
              HasSubstr("error: rank 0: cannot write '/dev/full'"));
  EXPECT_THAT(fault(two({}), {"TOY_STAGES=3"}),
              HasSubstr("compiled for 3 ranks, it was launched with 2"));
}

TEST_F(Mpi, RanksCompareProgramsAndOptions) {
  auto pair = [&](std::vector<std::string> a,
                  const std::vector<std::string> &b) {
    std::vector<std::string> words = {"!mpirun", "-n", "1"};
    words.insert(words.end(), a.begin(), a.end());
    words.insert(words.end(), {":", "-n", "1"});
    words.insert(words.end(), b.begin(), b.end());
    RunResult result = runToy(dir, words, environment({"TOY_STAGES=2"}));
    EXPECT_NE(result.status, 0);
    return result.error + result.output;
  };
  std::vector<std::string> plain = toy({"--steps=3"}), other = plain;
  other.insert(other.begin(), {"env", "TOY_HASH=b"});
  EXPECT_THAT(pair(plain, other),
              HasSubstr("error: rank 1 runs another executable than rank 0"));
  EXPECT_THAT(pair(plain, toy({"--steps=4"})),
              HasSubstr("error: rank 1 has another --steps than rank 0"));
  EXPECT_THAT(pair(plain, toy({"--steps=3", "--learning-rate=1"})),
              HasSubstr("rank 1 has another --learning-rate than rank 0"));
  Tensors data = pipeData(18, 5);
  writeFile(dir / "e.safetensors", tensorFile(data));
  std::vector<std::string> others = plain;
  others[2] = "e.safetensors";
  EXPECT_THAT(pair(plain, others),
              HasSubstr("rank 1 has 18 records of --data, rank 0 has 19"));
  writeFile(dir / "e.safetensors", tensorFile(pipeData(19, 6)));
  EXPECT_THAT(pair(plain, others),
              HasSubstr("rank 1 has other values in --data than rank 0"));
}

// Waits are longer than the timeout, but who is waited for computes.
TEST_F(Mpi, SlowRanksAreAlive) {
  RunResult result = run(3, {"TOY_STAGES=3", "TOY_EAGER=1", "TOY_SLEEP=100000"},
                         {"--steps=2", "--timeout=0.35"});
  EXPECT_EQ(result.status, 0) << result.error;
}

// A signal that one rank sees stops all after the same step.
TEST_F(Mpi, InterruptStopsAll) {
  std::vector<std::string> words =
      toy({"--steps=100000", "--output-dir=out", "--log-file=out.log"});
  words.insert(words.begin(), {"sh", "-c",
                               "echo $$ > $OMPI_COMM_WORLD_RANK; "
                               "exec \"$0\" \"$@\""});
  Process process(dir.path, mpirun(2, words),
                  environment({"TOY_STAGES=2", "TOY_SLEEP=1000"}));
  for (int i = 0; i < 1000 && readLog(dir / "out.log").size() < 3; ++i)
    usleep(10000);
  ::kill(std::stoi(readFile(dir / "1")), SIGINT);
  EXPECT_EQ(process.wait(), 130) << process.error();
  EXPECT_TRUE(fileExists(dir / "out/checkpoint-" +
                         std::to_string(readLog(dir / "out.log").size())));
}
