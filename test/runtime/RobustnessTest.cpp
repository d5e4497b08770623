//===- RobustnessTest.cpp - Resume, interrupts, full disks, usage ---------===//

#include "test/runtime/TestFiles.h"
#include "test/runtime/ToyModel.h"
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <unistd.h>

using namespace test;
using nlohmann::json;
using testing::HasSubstr;

namespace {
struct Robust : testing::Test {
  TempDir dir;

  void SetUp() override {
    writeToyWeights(dir / "toy.weights");
    writeFile(dir / "d.safetensors", tensorFile(toyData(7, 3)));
  }

  static std::vector<std::string> arguments(std::vector<std::string> more) {
    std::vector<std::string> all = {
        "--data", "d.safetensors",        "--weights",
        ".",      "--learning-rate=0.02", "--max-grad-norm=history:1.5"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  RunResult run(std::vector<std::string> more, int status = 0,
                const std::vector<std::string> &environment = {},
                int64_t fileSizeLimit = -1) {
    RunResult result =
        runToy(dir, arguments(std::move(more)), environment, fileSizeLimit);
    EXPECT_EQ(result.status, status) << result.output << result.error;
    return result;
  }

  void expectSameCheckpoint(const std::string &a, const std::string &b) {
    for (const char *name :
         {"model.safetensors", "optimizer.safetensors", "trainer_state.json"})
      EXPECT_EQ(readFile(dir / a + "/" + name), readFile(dir / b + "/" + name))
          << a << " " << name;
  }
};
} // namespace

TEST_F(Robust, ResumeIsBitIdentical) {
  run({"--steps=130", "--output-dir=whole", "--log-file=whole.jsonl"});
  run({"--steps=50", "--output-dir=part", "--log-file=part.jsonl"});
  run({"--steps=110", "--output-dir=part", "--log-file=part.jsonl",
       "--resume-from-checkpoint=part/checkpoint-50"});
  // Resuming from an older checkpoint cuts the log back.
  run({"--steps=130", "--output-dir=part", "--log-file=part.jsonl",
       "--resume-from-checkpoint=part/checkpoint-50"});
  expectSameCheckpoint("part/checkpoint-130", "whole/checkpoint-130");
  EXPECT_EQ(readLog(dir / "part.jsonl"), readLog(dir / "whole.jsonl"));
  // At its end already: nothing to do.
  run({"--steps=130", "--output-dir=part", "--log-file=part.jsonl",
       "--resume-from-checkpoint=latest"});
  EXPECT_EQ(readLog(dir / "part.jsonl"), readLog(dir / "whole.jsonl"));
  RunResult result = run(
      {"--steps=60", "--output-dir=part", "--resume-from-checkpoint=latest"},
      1);
  EXPECT_THAT(result.error, HasSubstr("is at step 130, beyond the 60 steps"));
}

TEST_F(Robust, ResumeFromNothingStartsAnew) {
  RunResult result =
      run({"--steps=2", "--output-dir=out", "--resume-from-checkpoint=latest"});
  EXPECT_THAT(result.error,
              HasSubstr("note: no checkpoint in 'out', starting anew"));
  result = run({"--steps=2", "--resume-from-checkpoint=none"}, 1);
  EXPECT_THAT(result.error, HasSubstr("error: 'none' is not a checkpoint"));
}

TEST_F(Robust, ResumeRefusesOtherModels) {
  run({"--steps=2", "--output-dir=out"});
  RunResult result =
      run({"--steps=4", "--resume-from-checkpoint=out/checkpoint-2"}, 1,
          {"TOY_RENAME=1"});
  EXPECT_THAT(result.error, HasSubstr("it has no tensor 'token.weight'"));
  result = run({"--steps=4", "--resume-from-checkpoint=out/checkpoint-2"}, 1,
               {"TOY_FINGERPRINT=1"});
  EXPECT_THAT(result.error, HasSubstr("of another model or of other options"));
  result = run(
      {"--steps=4", "--seed=1", "--resume-from-checkpoint=out/checkpoint-2"});
  EXPECT_THAT(result.error,
              HasSubstr("warning: --seed is 1, the checkpoint's is 42"));
}

// Killed at 20 random moments, it ends like a run that was left alone.
TEST_F(Robust, SurvivesKills) {
  std::vector<std::string> common = {"--steps=400", "--save-steps=3",
                                     "--save-total-limit=2"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  run(with({"--output-dir=whole", "--log-file=whole.jsonl"}));
  std::vector<std::string> again =
      with({"--output-dir=out", "--log-file=out.jsonl",
            "--resume-from-checkpoint=latest"});
  std::mt19937 random(4);
  int killed = 0;
  for (int i = 0; i < 20; ++i) {
    Process process(dir.path, arguments(again), {"TOY_SLEEP=100"});
    usleep(3000 + random() % 60000);
    process.kill(SIGKILL);
    int status = process.wait();
    ASSERT_TRUE(status == 0 || status == 256 + SIGKILL) << process.error();
    killed += status != 0;
    if (!fileExists(dir / "out"))
      continue;
    for (const std::string &name : namesIn(dir / "out"))
      if (name[0] != '.') {
        EXPECT_TRUE(fileExists(dir / "out/" + name + "/trainer_state.json"));
      }
  }
  EXPECT_GT(killed, 0);
  run(again);
  expectSameCheckpoint("out/checkpoint-400", "whole/checkpoint-400");
  EXPECT_EQ(namesIn(dir / "out"), namesIn(dir / "whole"));
  EXPECT_EQ(readLog(dir / "out.jsonl"), readLog(dir / "whole.jsonl"));
}

// As if killed between the last checkpoint and the removal of the oldest.
TEST_F(Robust, ResumeRemovesWhatAKillLeft) {
  std::vector<std::string> options = {"--steps=6", "--save-steps=2",
                                      "--save-total-limit=2",
                                      "--output-dir=out"};
  run(options);
  std::vector<std::string> names = namesIn(dir / "out");
  ASSERT_EQ(names.size(), 2u);
  std::filesystem::copy(dir / "out/checkpoint-4", dir / "out/checkpoint-2",
                        std::filesystem::copy_options::recursive);
  options.push_back("--resume-from-checkpoint=latest");
  run(options);
  EXPECT_EQ(namesIn(dir / "out"), names);
}

TEST_F(Robust, InterruptSavesAndResumes) {
  Process process(
      dir.path,
      arguments({"--steps=100000", "--output-dir=out", "--log-file=out.jsonl"}),
      {"TOY_SLEEP=2000"});
  for (int i = 0; i < 500 && readLog(dir / "out.jsonl").size() < 3; ++i)
    usleep(10000);
  process.kill(SIGINT);
  EXPECT_EQ(process.wait(), 130) << process.error();
  size_t steps = readLog(dir / "out.jsonl").size();
  ASSERT_GE(steps, 3u);
  std::string saved = "out/checkpoint-" + std::to_string(steps);
  ASSERT_TRUE(fileExists(dir / saved));
  run({"--steps=" + std::to_string(steps), "--output-dir=whole"});
  expectSameCheckpoint(saved, "whole/checkpoint-" + std::to_string(steps));
}

// RLIMIT_FSIZE stands in for a full disk: write() fails in the middle.
TEST_F(Robust, FullDiskLeavesNoPart) {
  RunResult result = run({"--steps=2", "--output-dir=out"}, 1, {}, 600);
  EXPECT_THAT(result.error,
              HasSubstr("error: cannot write 'out/.tmp-checkpoint-2/"));
  EXPECT_TRUE(namesIn(dir / "out").empty());
  result = run({"--steps=2", "--dump-gradients=g.safetensors"}, 1, {}, 100);
  EXPECT_THAT(result.error, HasSubstr("error: cannot write 'g.safetensors'"));
  result = run({"--steps=2", "--trace=t.json"}, 1, {}, 200);
  EXPECT_THAT(result.error, HasSubstr("error: cannot write 't.json'"));
  result = run({"--steps=2", "--log-file=l.jsonl"}, 1, {}, 100);
  EXPECT_THAT(result.error, HasSubstr("error: cannot write 'l.jsonl'"));
  result = run({"--steps=2", "--log-file=/dev/full"}, 1);
  EXPECT_THAT(result.error,
              HasSubstr("cannot write '/dev/full': No space left on device"));
  for (const std::string &name : namesIn(dir.path))
    EXPECT_THAT(name, testing::Not(testing::AnyOf(HasSubstr("g.safe"),
                                                  HasSubstr("t.json"))));
}

TEST_F(Robust, DataFaultsExitWithOne) {
  auto fault = [&](const std::string &file) {
    RunResult result =
        runToy(dir, {"--data", file, "--weights", ".", "--steps", "1"});
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1)
        << result.error;
    return result.error;
  };
  EXPECT_THAT(fault("nowhere"), HasSubstr("error: cannot open 'nowhere'"));
  writeFile(dir / "few", tensorFile(toyData(1, 1)));
  EXPECT_THAT(fault("few"),
              HasSubstr("1 records, fewer than the 2 micro-batches of a step"));
  writeFile(dir / "cut", readFile(dir / "d.safetensors").substr(0, 700));
  EXPECT_THAT(fault("cut"), HasSubstr("'cut' is truncated"));
}

TEST_F(Robust, IndexFaultsNameTheNode) {
  RunResult result = run({"--steps=1"}, 1, {"TOY_INDEX=1"});
  EXPECT_THAT(result.error,
              HasSubstr("error: index 7 is outside [0, 5) in node "
                        "'/model/Gather_3'"));
}

TEST_F(Robust, UsageExitsWithTwo) {
  auto usage = [&](std::vector<std::string> more) {
    RunResult result = run(std::move(more), 2);
    EXPECT_EQ(result.error.rfind("error: ", 0), 0u) << result.error;
    return result.error;
  };
  EXPECT_THAT(usage({}), HasSubstr("one of --steps and --epochs"));
  EXPECT_THAT(usage({"--steps=1", "--epochs=1"}), HasSubstr("excludes"));
  EXPECT_THAT(usage({"--steps=1", "--nonsense"}), HasSubstr("--nonsense"));
  EXPECT_THAT(usage({"--steps=x"}), HasSubstr("--steps"));
  EXPECT_THAT(usage({"--steps=-1"}), HasSubstr("--steps is -1"));
  EXPECT_THAT(usage({"--steps=1", "--adam-beta1=1"}), HasSubstr("below 1"));
  EXPECT_THAT(usage({"--steps=1", "--save-steps=1"}),
              HasSubstr("needs --output-dir"));
  EXPECT_THAT(usage({"--steps=1", "--learning-rate-of=x"}),
              HasSubstr("GLOB=X"));
  EXPECT_THAT(usage({"--steps=1", "--adapt-every=2"}),
              HasSubstr("this one has 2 micro-batches a step"));
  RunResult result =
      runToy(dir, {"--weights=.", "--steps=1", "--max-grad-norm=x", "--data",
                   "d.safetensors"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.error, HasSubstr("--max-grad-norm is 'x'"));
  EXPECT_THAT(run({"--steps=1", "--no-decay=embd.*"}, 1).error,
              HasSubstr("nearest: embed.weight"));
  EXPECT_EQ(runToy(dir, {"--help"}).status, 0);
  EXPECT_EQ(runToy(dir, {"--version"}).output, "toy 1\n");
}

TEST_F(Robust, DryRunChangesNothing) {
  RunResult result =
      run({"--dry-run", "--log-file=l.jsonl", "--output-dir=out"});
  EXPECT_THAT(result.output, HasSubstr("records: 7"));
  EXPECT_FALSE(fileExists(dir / "l.jsonl"));
  EXPECT_FALSE(fileExists(dir / "out"));
  // Without data it tells of weights and memory.
  result = runToy(dir, {"--weights=.", "--dry-run"});
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("memory: "));
  EXPECT_THAT(result.output, testing::Not(HasSubstr("records")));
  std::filesystem::remove(dir / "toy.weights");
  result = run({"--dry-run"}, 1);
  EXPECT_THAT(result.error, HasSubstr("--weights DIR says where"));
}
