//===- PipelineTest.cpp - The same training on any number of ranks --------===//

#include "test/runtime/PipeToy.h"
#include "test/runtime/TestFiles.h"
#include "test/runtime/ToyModel.h"
#include <chrono>
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <unistd.h>

using namespace test;
using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

namespace {
struct Pipeline : testing::Test {
  TempDir dir;

  void SetUp() override {
    writePipeWeights(dir / "pipe.weights");
    writeFile(dir / "d.safetensors", tensorFile(pipeData(19, 5)));
  }

  /// The usual options, those that `more` does not give, and `more`.
  static std::vector<std::string> arguments(std::vector<std::string> more) {
    std::vector<std::string> all;
    for (const char *text :
         {"--data=d.safetensors", "--weights=.", "--learning-rate=0.05",
          "--max-grad-norm=0.7", "--threads=1"}) {
      std::string name(text, strchr(text, '=') + 1);
      if (std::none_of(more.begin(), more.end(), [&](const std::string &given) {
            return given.rfind(name, 0) == 0;
          }))
        all.emplace_back(text);
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  RunResult run(const std::vector<std::string> &plan,
                std::vector<std::string> more, int status = 0) {
    RunResult result = runToy(dir, arguments(std::move(more)), plan);
    EXPECT_EQ(result.status, status) << result.output << result.error;
    return result;
  }

  void expectSameTensors(const std::string &a, const std::string &b) {
    for (const char *name : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(readFile(dir / a + "/" + name), readFile(dir / b + "/" + name))
          << a << " " << name;
  }
};
} // namespace

static const std::vector<std::vector<std::string>> plans = {
    {"TOY_STAGES=2"},
    {"TOY_STAGES=3"},
    {"TOY_STAGES=2", "TOY_EAGER=1"},
    {"TOY_STAGES=3", "TOY_SLOTS=2"},
    {"TOY_STAGES=2", "TOY_SLOTS=1"},
    {"TOY_STAGES=2", "TOY_SPLIT=1"},
    {"TOY_STAGES=3", "TOY_SPLIT=1", "TOY_SLOTS=3", "TOY_EAGER=1"},
    {"TOY_STAGES=2", "TOY_CHUNKS=2"},
    {"TOY_STAGES=2", "TOY_CHUNKS=3", "TOY_SLOTS=2"},
    {"TOY_STAGES=3", "TOY_CHUNKS=2", "TOY_SPLIT=1"},
    {"TOY_STAGES=1", "TOY_CHUNKS=3", "TOY_SPLIT=1", "TOY_SLOTS=2"},
    {"TOY_STAGES=6"}};

TEST_F(Pipeline, StagesChangeNoBit) {
  run({"TOY_STAGES=1"}, {"--steps=12", "--output-dir=one", "--log-file=one.log",
                         "--dump-gradients=one.grad", "--eval-data",
                         "d.safetensors", "--eval-steps=5"});
  for (const auto &plan : plans) {
    SCOPED_TRACE(testing::PrintToString(plan));
    run(plan, {"--steps=12", "--output-dir=many", "--log-file=many.log",
               "--dump-gradients=many.grad", "--eval-data", "d.safetensors",
               "--eval-steps=5"});
    EXPECT_EQ(readLog(dir / "many.log"), readLog(dir / "one.log"));
    expectSameTensors("many/checkpoint-12", "one/checkpoint-12");
    EXPECT_EQ(readFile(dir / "many.grad"), readFile(dir / "one.grad"));
  }
  std::vector<json> lines = readLog(dir / "one.log");
  EXPECT_LT(lines[11]["loss"].get<double>(), lines[0]["loss"].get<double>());
  EXPECT_TRUE(lines[4].contains("eval_accuracy"));
}

// The same records in a step; only the order of additions differs.
TEST_F(Pipeline, ReplicasSplitTheStep) {
  std::vector<std::string> options = {"--steps=8", "--log-file=one.log",
                                      "--output-dir=one"};
  run({"TOY_STAGES=1", "TOY_MICRO_BATCHES=6"}, options);
  std::vector<json> expected = readLog(dir / "one.log");
  for (std::vector<std::string> plan :
       {std::vector<std::string>{"TOY_STAGES=1", "TOY_REPLICAS=2",
                                 "TOY_MICRO_BATCHES=3"},
        {"TOY_STAGES=1", "TOY_REPLICAS=3", "TOY_MICRO_BATCHES=2"},
        {"TOY_STAGES=3", "TOY_REPLICAS=2", "TOY_MICRO_BATCHES=3"},
        {"TOY_STAGES=2", "TOY_REPLICAS=3", "TOY_MICRO_BATCHES=2",
         "TOY_CHUNKS=2"}}) {
    SCOPED_TRACE(testing::PrintToString(plan));
    run(plan, {"--steps=8", "--log-file=many.log", "--output-dir=many"});
    std::vector<json> lines = readLog(dir / "many.log");
    ASSERT_EQ(lines.size(), expected.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      for (const char *key : {"loss", "grad_norm"})
        EXPECT_NEAR(lines[i][key].get<double>(), expected[i][key].get<double>(),
                    1e-4)
            << key << i;
      EXPECT_EQ(lines[i]["samples"], 12);
      EXPECT_EQ(lines[i]["epoch"], expected[i]["epoch"]);
    }
  }
  // Stages change no bit here either.
  run({"TOY_STAGES=1", "TOY_REPLICAS=2", "TOY_MICRO_BATCHES=3"},
      {"--steps=8", "--log-file=a.log", "--output-dir=a"});
  run({"TOY_STAGES=3", "TOY_REPLICAS=2", "TOY_MICRO_BATCHES=3"},
      {"--steps=8", "--log-file=b.log", "--output-dir=b"});
  EXPECT_EQ(readLog(dir / "a.log"), readLog(dir / "b.log"));
  expectSameTensors("a/checkpoint-8", "b/checkpoint-8");
}

// An artificial link takes time, and nothing else.
TEST_F(Pipeline, LinksChangeNoBit) {
  std::vector<std::string> plan = {"TOY_STAGES=2", "TOY_REPLICAS=2"};
  run(plan, {"--steps=4", "--log-file=a.log", "--output-dir=a"});
  for (const char *link : {"delay=1e-3,bandwidth=1e6",
                           "delay=2e-3,replicas-only", "bandwidth=1e5"}) {
    std::vector<std::string> linked = plan;
    linked.push_back(std::string("MGQ_TEST_LINK=") + link);
    run(linked, {"--steps=4", "--log-file=b.log", "--output-dir=b"});
    EXPECT_EQ(readLog(dir / "b.log"), readLog(dir / "a.log")) << link;
    expectSameTensors("b/checkpoint-4", "a/checkpoint-4");
  }
  plan.emplace_back("MGQ_TEST_LINK=slow");
  EXPECT_THAT(run(plan, {"--steps=4"}, 2).error,
              StartsWith("error: MGQ_TEST_LINK is 'slow', expected delay="));
}

// Records are dealt out to replicas, and summed in their own order.
TEST_F(Pipeline, EvaluationChangesNoBit) {
  writeFile(dir / "e.safetensors", tensorFile(pipeData(700, 6)));
  std::vector<double> losses;
  for (const char *replicas : {"1", "2", "3"}) {
    run({"TOY_STAGES=2", "TOY_MICRO_BATCHES=2",
         std::string("TOY_REPLICAS=") + replicas},
        {"--steps=1", "--learning-rate=0", "--eval-data", "e.safetensors",
         "--log-file=log"});
    losses.push_back(readLog(dir / "log")[0]["eval_loss"]);
    losses.push_back(readLog(dir / "log")[0]["eval_accuracy"]);
  }
  EXPECT_EQ(losses[2], losses[0]);
  EXPECT_EQ(losses[3], losses[1]);
  EXPECT_EQ(losses[4], losses[0]);
  EXPECT_EQ(losses[5], losses[1]);
}

// All ranks skip the same steps.
TEST_F(Pipeline, SkipsNonfiniteSteps) {
  for (const char *stages : {"1", "3"})
    run({std::string("TOY_STAGES=") + stages},
        {"--steps=6", "--learning-rate=1e38", "--max-grad-norm=0",
         "--on-nonfinite=skip", std::string("--log-file=log") + stages,
         std::string("--summary=sum") + stages});
  EXPECT_EQ(readLog(dir / "log3"), readLog(dir / "log1"));
  json summary = json::parse(readFile(dir / "sum3"));
  EXPECT_GT(summary["nonfinite_steps"].get<int>(), 0);
}

// Micro-batches, a replica's whole step and whole steps without targets.
TEST_F(Pipeline, SkipsWhatHasNoTarget) {
  Tensors data = pipeData(12, 5);
  std::vector<int64_t> labels(24, toy::ignored);
  for (int record : {0, 4, 5, 7})
    labels[2 * record] = record % 8;
  data["labels"] = tensor("I64", {12, 2}, labels);
  writeFile(dir / "d.safetensors", tensorFile(data));
  std::vector<std::string> options = {"--steps=3", "--shuffle=off"};
  auto with = [&](const std::string &name, const std::string &reduction) {
    std::vector<std::string> all = options;
    for (const std::string &text :
         {"--log-file=" + name + ".log", "--output-dir=" + name,
          "--loss-reduction=" + reduction})
      all.push_back(text);
    return all;
  };
  for (std::string reduction : {"tokens", "micro-batch"}) {
    SCOPED_TRACE(reduction);
    run({"TOY_STAGES=1"}, with("one", reduction));
    EXPECT_EQ(readLog(dir / "one.log")[2]["loss"], 0.0);
    for (std::string slots : {"4", "1"}) {
      run({"TOY_STAGES=2", "TOY_SLOTS=" + slots}, with("two", reduction));
      EXPECT_EQ(readLog(dir / "two.log"), readLog(dir / "one.log"));
      expectSameTensors("two/checkpoint-3", "one/checkpoint-3");
    }
    // The second replica has nothing in the first step.
    run({"TOY_STAGES=2", "TOY_REPLICAS=2", "TOY_MICRO_BATCHES=2"},
        with("four", reduction));
    for (int step = 0; step < 3; ++step) {
      EXPECT_NEAR(readLog(dir / "four.log")[step]["loss"].get<double>(),
                  readLog(dir / "one.log")[step]["loss"].get<double>(), 1e-5);
      EXPECT_NEAR(readLog(dir / "four.log")[step]["grad_norm"].get<double>(),
                  readLog(dir / "one.log")[step]["grad_norm"].get<double>(),
                  1e-5);
    }
  }
}

TEST_F(Pipeline, ResumesOnOtherStages) {
  auto with = [&](std::vector<std::string> more) {
    more.push_back("--learning-rate=0.01");
    return more;
  };
  run({"TOY_STAGES=1"},
      with({"--steps=20", "--output-dir=one", "--log-file=one.log"}));
  run({"TOY_STAGES=2"},
      with({"--steps=7", "--output-dir=many", "--log-file=many.log"}));
  run({"TOY_STAGES=3", "TOY_SPLIT=1"},
      with({"--steps=13", "--output-dir=many", "--log-file=many.log",
            "--resume-from-checkpoint=latest"}));
  run({"TOY_STAGES=2", "TOY_CHUNKS=2"},
      with({"--steps=20", "--output-dir=many", "--log-file=many.log",
            "--resume-from-checkpoint=many/checkpoint-13"}));
  EXPECT_EQ(readLog(dir / "many.log"), readLog(dir / "one.log"));
  expectSameTensors("many/checkpoint-20", "one/checkpoint-20");
  // A checkpoint that does not fit stops all.
  RunResult result =
      run({"TOY_STAGES=3"},
          with({"--steps=20", "--resume-from-checkpoint=nowhere"}), 1);
  EXPECT_EQ(result.error, "error: rank 0: 'nowhere' is not a checkpoint: it is "
                          "not a folder\n");
}

TEST_F(Pipeline, ReportsOfAllRanks) {
  RunResult result = run(
      {"TOY_STAGES=3", "TOY_REPLICAS=2", "TOY_SPLIT=1", "TOY_SLEEP=200"},
      {"--steps=5", "--trace=t.json", "--profile=p.json", "--summary=s.json"});
  EXPECT_THAT(result.output, testing::ContainsRegex(
                                 "step 0\\.[0-9]+ s \\(predicted 0.58\\), "
                                 "bubble [0-9.]+ % \\(predicted 11.0 %\\)"));
  json summary = json::parse(readFile(dir / "s.json"));
  ASSERT_EQ(summary["ranks"].size(), 6u);
  EXPECT_GT(summary["bubble"].get<double>(), 0);
  EXPECT_LT(summary["bubble"].get<double>(), 1);
  EXPECT_EQ(summary["predicted_bubble"], 0.11);
  EXPECT_EQ(summary["samples_per_second"].get<double>() > 0, true);
  EXPECT_EQ(summary["ranks"][4]["stage"], 1);
  EXPECT_EQ(summary["ranks"][4]["replica"], 1);
  EXPECT_EQ(summary["ranks"][4]["peak_bytes"],
            summary["ranks"][4]["planned_bytes"]);
  // 5 steps of 4 micro-batches of 64 bytes.
  EXPECT_EQ(summary["ranks"][0]["bytes_sent"]["activation"], 5 * 4 * 64);
  EXPECT_EQ(summary["ranks"][2]["bytes_sent"]["activation"], 0);
  EXPECT_EQ(summary["ranks"][0]["bytes_sent"]["parameter"], 5 * 32);

  json trace = json::parse(readFile(dir / "t.json"));
  std::map<std::string, int64_t> events, bytes;
  std::set<int> pids;
  for (const json &event : trace["traceEvents"]) {
    if (event["ph"] != "X")
      continue;
    std::string kind = event["cat"];
    ++events[kind];
    pids.insert(event["pid"].get<int>());
    EXPECT_GE(event["ts"].get<double>(), 0);
    if (kind == "send" && event["pid"] == 0)
      bytes[event["args"]["traffic"]] += event["args"]["bytes"].get<int64_t>();
  }
  EXPECT_EQ(pids.size(), 6u);
  EXPECT_EQ(bytes["activation"], 5 * 4 * 64);
  EXPECT_EQ(bytes["parameter"], 5 * 32);
  EXPECT_EQ(events["send"], events["recv"]);
  for (const char *kind : {"forward", "backward", "weight", "send", "recv",
                           "wait", "all_reduce", "exchange", "optimizer"})
    EXPECT_GT(events[kind], 0) << kind;

  json profile = json::parse(readFile(dir / "p.json"));
  ASSERT_EQ(profile["ranks"].size(), 6u);
  EXPECT_EQ(profile["ranks"][1]["layers"].size(), 2u);
  EXPECT_EQ(profile["ranks"][1]["layers"][0]["name"], "l2");
  EXPECT_GT(profile["ranks"][1]["layers"][0]["weight_seconds"].get<double>(),
            0);
}

TEST_F(Pipeline, DryRunNamesRanks) {
  RunResult result = run({"TOY_STAGES=2", "TOY_REPLICAS=2"}, {"--dry-run"});
  EXPECT_THAT(result.output, HasSubstr("ranks: 4 (2 stages, 2 replicas)"));
  EXPECT_THAT(result.output, HasSubstr("rank 3: stage 1, replica 1, memory "));
}

TEST_F(Pipeline, InterruptStopsAllAfterTheSameStep) {
  Process process(
      dir.path,
      arguments({"--steps=100000", "--output-dir=out", "--log-file=out.jsonl"}),
      {"TOY_STAGES=3", "TOY_SLEEP=1000"});
  for (int i = 0; i < 500 && readLog(dir / "out.jsonl").size() < 3; ++i)
    usleep(10000);
  process.kill(SIGINT);
  EXPECT_EQ(process.wait(), 130) << process.error();
  std::string steps = std::to_string(readLog(dir / "out.jsonl").size());
  ASSERT_TRUE(fileExists(dir / "out/checkpoint-" + steps));
  run({"TOY_STAGES=1"}, {"--steps=" + steps, "--output-dir=whole"});
  expectSameTensors("out/checkpoint-" + steps, "whole/checkpoint-" + steps);
}

TEST_F(Pipeline, FaultsStopAllRanks) {
  auto fault = [&](std::vector<std::string> plan,
                   std::vector<std::string> more = {}) {
    plan.push_back("TOY_STAGES=3");
    more.push_back("--steps=20");
    more.push_back("--output-dir=out");
    auto start = std::chrono::steady_clock::now();
    RunResult result = run(plan, more, 1);
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(8));
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1)
        << result.error;
    for (const std::string &name : namesIn(dir / "out"))
      EXPECT_EQ(name[0], '.');
    return result.error;
  };
  EXPECT_EQ(fault({"TOY_INDEX=1"}),
            "error: rank 1: index 9 is outside [0, 8) in node "
            "'/model/Gather_7' (layer probe)\n");
  EXPECT_EQ(fault({"TOY_STALL=2"}, {"--timeout=0.5"}),
            "error: rank 1 waits for rank 2: no sign of life for 0.5 s\n");
  EXPECT_THAT(fault({"TOY_HUGE=1"}),
              StartsWith("error: rank 1: the plan needs 1024.00 TiB of "
                         "memory, "));
  // What all ranks meet is told once, without a rank.
  EXPECT_THAT(fault({}, {"--data=nowhere"}),
              StartsWith("error: cannot open 'nowhere'"));
  EXPECT_THAT(fault({}, {"--learning-rate=1e38", "--max-grad-norm=0"}),
              StartsWith("error: the gradient of parameter "));
  EXPECT_THAT(fault({}, {"--log-file=/dev/full"}),
              StartsWith("error: rank 0: cannot write '/dev/full'"));
  writeFile(dir / "pipe.weights", std::string(100, '\0'));
  EXPECT_THAT(fault({}), StartsWith("error: rank 0: './pipe.weights' is too "
                                    "short: parameter 'w0'"));
}

// Waits are longer than the timeout, but who is waited for computes.
TEST_F(Pipeline, SlowRanksAreAlive) {
  run({"TOY_STAGES=3", "TOY_EAGER=1", "TOY_SLEEP=60000"},
      {"--steps=2", "--timeout=0.15"});
}

TEST_F(Pipeline, AStepAllocatesNothing) {
  auto calls = [&](const char *steps) {
    RunResult result =
        run({"TOY_STAGES=2", "TOY_REPLICAS=2", "TOY_CHUNKS=2", "TOY_COUNT=1"},
            {steps, "--log-file=log", "--max-grad-norm=history"});
    return result.error;
  };
  EXPECT_EQ(calls("--steps=110"), calls("--steps=150"));
}

TEST_F(Pipeline, WrongLauncherSizesSayBothNumbers) {
  RunResult result = runToy(dir, arguments({"--steps=1"}),
                            {"TOY_STAGES=3", "OMPI_COMM_WORLD_SIZE=2"});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.error, "error: the program was compiled for 3 ranks, it was "
                          "launched with 2\n");
  EXPECT_EQ(runToy(dir, arguments({"--steps=1"}),
                   {"TOY_STAGES=1", "OMPI_COMM_WORLD_SIZE=1"})
                .status,
            0);
  result = runToy(dir, arguments({"--steps=1"}),
                  {"TOY_STAGES=2", "OMPI_COMM_WORLD_SIZE=2",
                   "MGQ_PLUGIN_DIR=/nonexistent/plugins"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.error,
              StartsWith("error: cannot find libmgq_mpi.so, which "
                         "connects processes; looked in "
                         "'/nonexistent/plugins', '"));
}
