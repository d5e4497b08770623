//===- TrainTest.cpp - The toy executable against a f64 reference ---------===//

#include "test/runtime/TestFiles.h"
#include "test/runtime/ToyModel.h"
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace test;
using nlohmann::json;
using testing::HasSubstr;

namespace {
struct Train : testing::Test {
  TempDir dir;

  void SetUp() override {
    writeToyWeights(dir / "toy.weights");
    writeFile(dir / "d.safetensors", tensorFile(toyData(7, 3)));
  }

  /// Runs with the usual options and `more`; expects `status`.
  RunResult run(std::vector<std::string> more,
                const std::vector<std::string> &environment = {},
                int status = 0) {
    std::vector<std::string> all = {"--data", "d.safetensors", "--weights",
                                    "."};
    all.insert(all.end(), more.begin(), more.end());
    RunResult result = runToy(dir, all, environment);
    EXPECT_EQ(result.status, status) << result.error;
    return result;
  }

  std::vector<json> log(const std::string &name = "log.jsonl") {
    std::vector<json> lines;
    std::istringstream text(readFile(dir / name));
    for (std::string line; std::getline(text, line);)
      lines.push_back(json::parse(line));
    return lines;
  }
};

/// The toy model and its training in f64.
struct Reference {
  std::vector<double> value, grad, momentum, variance; // embed, head, bias.
  double frozen[4];
  std::vector<int64_t> ids, labels;
  std::vector<float> pixels;

  explicit Reference(const TempDir &dir)
      : grad(72), momentum(72), variance(72) {
    std::string bytes = readFile(dir / "toy.weights");
    auto f32 = [&](int64_t at) {
      float number;
      memcpy(&number, bytes.data() + at, 4);
      return static_cast<double>(number);
    };
    for (int i = 0; i < 68; ++i)
      value.push_back(f32(4 * i));
    for (int c = 0; c < 4; ++c) {
      std::string wide =
          std::string(2, '\0') + bytes.substr(toy::biasAt + 2 * c, 2);
      float number;
      memcpy(&number, wide.data(), 4);
      value.push_back(static_cast<double>(number));
      frozen[c] = f32(toy::frozenAt + 4 * c);
    }
    Tensors data = toyData(7, 3);
    auto read = [&](const char *name, auto &to) {
      to.resize(data[name].bytes.size() / sizeof(to[0]));
      memcpy(to.data(), data[name].bytes.data(), data[name].bytes.size());
    };
    read("ids", ids);
    read("labels", labels);
    read("pixels", pixels);
  }

  int64_t count(int64_t record) const {
    return (labels[2 * record] >= 0) + (labels[2 * record + 1] >= 0);
  }

  /// Adds the gradient of seed times the loss sum; returns the loss sum.
  double microBatch(int64_t record, double seed) {
    double loss = 0;
    for (int64_t row = 2 * record; row < 2 * record + 2; ++row) {
      if (labels[row] < 0)
        continue;
      double p[4], sum = 0;
      for (int c = 0; c < 4; ++c) {
        p[c] = value[ids[row] * 4 + c] + 2 * value[68 + c] + frozen[c];
        for (int k = 0; k < 12; ++k)
          p[c] +=
              static_cast<double>(pixels[row * 12 + k]) * value[20 + k * 4 + c];
        sum += p[c] = std::exp(p[c]);
      }
      loss -= std::log(p[labels[row]] / sum);
      for (int c = 0; c < 4; ++c) {
        double delta = seed * (p[c] / sum - (labels[row] == c));
        grad[ids[row] * 4 + c] += delta;
        grad[68 + c] += 2 * delta;
        for (int k = 0; k < 12; ++k)
          grad[20 + k * 4 + c] +=
              static_cast<double>(pixels[row * 12 + k]) * delta;
      }
    }
    return loss;
  }

  double norm() const {
    double sum = 0;
    for (double g : grad)
      sum += g * g;
    return std::sqrt(sum);
  }

  /// AdamW with the executable's defaults.
  void update(double rate, double factor, int t) {
    for (size_t i = 0; i < 72; ++i) {
      double g = grad[i] * factor;
      value[i] *= 1 - rate * 0.05;
      momentum[i] = 0.9 * momentum[i] + 0.1 * g;
      variance[i] = 0.99 * variance[i] + 0.01 * g * g;
      double denominator =
          std::sqrt(variance[i] / (1 - std::pow(0.99, t))) + 1e-8;
      value[i] -= rate * momentum[i] / (1 - std::pow(0.9, t)) / denominator;
    }
  }
};
} // namespace

/// Compares six unshuffled steps (three an epoch) with the reference.
static void compare(Train &test, bool tokens, double clip) {
  auto &fixture = static_cast<Train &>(test);
  std::vector<std::string> options = {"--shuffle=off",
                                      "--steps=6",
                                      "--learning-rate=0.01",
                                      "--log-file=log.jsonl",
                                      "--output-dir=out",
                                      "--max-grad-norm=" + std::to_string(clip),
                                      "--dump-gradients=g.safetensors"};
  if (!tokens)
    options.push_back("--loss-reduction=micro-batch");
  RunResult result;
  std::vector<std::string> all = {"--data", "d.safetensors", "--weights", "."};
  all.insert(all.end(), options.begin(), options.end());
  result = runToy(fixture.dir, all);
  ASSERT_EQ(result.status, 0) << result.error;
  std::istringstream text(readFile(fixture.dir / "log.jsonl"));
  Reference reference(fixture.dir);
  for (int step = 0; step < 6; ++step) {
    std::string line;
    ASSERT_TRUE(std::getline(text, line));
    json entry = json::parse(line);
    int64_t first = step % 3 * 2;
    double count[] = {double(reference.count(first)),
                      double(reference.count(first + 1))};
    double total = count[0] + count[1], loss = 0;
    reference.grad.assign(72, 0);
    for (int mb = 0; mb < 2; ++mb) {
      if (count[mb] == 0)
        continue;
      double seed = 1 / (tokens ? total : 2 * count[mb]);
      loss += reference.microBatch(first + mb, seed) * seed;
    }
    if (step == 0) {
      mgq::rt::SafetensorsFile file(fixture.dir / "g.safetensors");
      float g[48];
      memcpy(g, file.find("head.weight")->data, sizeof g);
      for (int c = 0; c < 4; ++c)
        for (int k = 0; k < 12; ++k)
          EXPECT_NEAR(g[c * 12 + k], reference.grad[20 + k * 4 + c], 1e-6);
    }
    double norm = reference.norm();
    reference.update(0.01, clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1,
                     step + 1);
    EXPECT_NEAR(entry["loss"].get<double>(), loss, 1e-5) << step;
    EXPECT_NEAR(entry["grad_norm"].get<double>(), norm, 1e-5) << step;
    EXPECT_EQ(entry["step"], step + 1);
    EXPECT_EQ(entry["epoch"], (step + 1) / 3.0);
    EXPECT_EQ(entry["learning_rate"], 0.01);
    EXPECT_EQ(entry["samples"], 4);
    EXPECT_GT(entry["step_seconds"].get<double>(), 0);
  }
  mgq::rt::SafetensorsFile model(fixture.dir /
                                 "out/checkpoint-6/model.safetensors");
  EXPECT_EQ(model.tensors().size(), 3u);
  float embed[20];
  memcpy(embed, model.find("embed.weight")->data, sizeof embed);
  for (int i = 0; i < 20; ++i)
    EXPECT_NEAR(embed[i], reference.value[i], 2e-5);
}

TEST_F(Train, TokensAgreeWithReference) { compare(*this, true, 0); }
TEST_F(Train, MicroBatchMeanAgreesWithReference) { compare(*this, false, 0); }
TEST_F(Train, ClippedAgreesWithReference) { compare(*this, true, 0.3); }

TEST_F(Train, UnrecognisedLossIsAMean) {
  Tensors data = toyData(4, 3);
  data["labels"] = tensor<int64_t>("I64", {8}, {0, 1, 2, 3, 0, 1, 2, 3});
  writeFile(dir / "d.safetensors", tensorFile(data));
  RunResult result =
      run({"--steps=1", "--log-file=log.jsonl"}, {"TOY_MEAN=1", "TOY_SEEDS=1"});
  EXPECT_EQ(result.error, "seed 0.5\nseed 0.5\n");
  double mean = log()[0]["loss"];
  run({"--steps=1", "--log-file=log.jsonl"});
  EXPECT_NEAR(log()[0]["loss"].get<double>(), mean, 1e-6);
  result = run({"--steps=1", "--loss-reduction=tokens"}, {"TOY_MEAN=1"}, 2);
  EXPECT_THAT(result.error, HasSubstr("needs a loss that is recognised"));
}

// Records 0 and 1 have no valid target, 2 has one, 3 has two.
TEST_F(Train, StepsWithoutTargetsChangeNothing) {
  Tensors data = toyData(4, 3);
  data["labels"] =
      tensor<int64_t>("I64", {8}, {-100, -100, -100, -100, 1, -100, 2, 3});
  writeFile(dir / "d.safetensors", tensorFile(data));
  for (std::string reduction : {"tokens", "micro-batch"}) {
    RunResult result = run(
        {"--steps=2", "--shuffle=off", "--log-file=log.jsonl",
         "--output-dir=out", "--save-steps=1", "--loss-reduction=" + reduction,
         "--summary=s.json", "--dump-gradients=g.safetensors"},
        {"TOY_SEEDS=1"});
    EXPECT_THAT(result.error,
                HasSubstr(reduction == "tokens"
                              ? "seed 0.333333343\nseed 0.333333343\n"
                              : "seed 0.5\nseed 0.25\n"));
    EXPECT_THAT(result.error, HasSubstr("note: 1 steps had no valid target"));
    EXPECT_EQ(log()[0]["loss"], 0.0);
    EXPECT_EQ(log()[0]["grad_norm"], 0.0);
    EXPECT_GT(log()[1]["loss"].get<double>(), 0);
    json state =
        json::parse(readFile(dir / "out/checkpoint-2/trainer_state.json"));
    EXPECT_EQ(state["empty_steps"], 1);
    EXPECT_EQ(state["updates"], 1);
    EXPECT_EQ(json::parse(readFile(dir / "s.json"))["empty_steps"], 1);
    mgq::rt::SafetensorsFile model(dir / "out/checkpoint-1/model.safetensors");
    EXPECT_EQ(memcmp(model.find("embed.weight")->data,
                     readFile(dir / "toy.weights").data(), 80),
              0);
    EXPECT_TRUE(fileExists(dir / "g.safetensors")); // Of the second step.
  }
}

TEST_F(Train, NonfiniteGradientsStopOrSkip) {
  RunResult result = run({"--steps=3"}, {"TOY_NAN=3"}, 1);
  EXPECT_THAT(result.error, HasSubstr("error: the gradient of parameter "
                                      "'head.weight' is not finite in step 2"));
  result = run({"--steps=3", "--on-nonfinite=skip", "--log-file=log.jsonl",
                "--summary=s.json"},
               {"TOY_NAN=3"});
  EXPECT_EQ(log().size(), 3u);
  EXPECT_TRUE(log()[1]["grad_norm"].is_null());
  EXPECT_FALSE(log()[2]["grad_norm"].is_null());
  EXPECT_EQ(json::parse(readFile(dir / "s.json"))["nonfinite_steps"], 1);
}

TEST_F(Train, SchedulesReachTheLog) {
  run({"--epochs=2", "--log-file=log.jsonl", "--lr-scheduler-type=linear",
       "--warmup-steps=2", "--learning-rate=1e-3", "--logging-steps=2"});
  std::vector<json> lines = log();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["step"], 2);
  EXPECT_DOUBLE_EQ(lines[0]["learning_rate"], 5e-4);
  EXPECT_DOUBLE_EQ(lines[1]["learning_rate"], 1e-3 * 3 / 4);
  EXPECT_DOUBLE_EQ(lines[2]["learning_rate"], 1e-3 * 1 / 4);
}

TEST_F(Train, EvaluatesTokenWeighted) {
  writeFile(dir / "e.safetensors", tensorFile(toyData(5, 9)));
  run({"--steps=4", "--learning-rate=0", "--eval-data=e.safetensors",
       "--eval-steps=2", "--log-file=log.jsonl", "--summary=s.json"});
  std::vector<json> lines = log();
  EXPECT_FALSE(lines[0].contains("eval_loss"));
  ASSERT_TRUE(lines[1].contains("eval_loss"));
  EXPECT_TRUE(lines[1].contains("eval_accuracy"));
  EXPECT_EQ(lines[1]["eval_loss"], lines[3]["eval_loss"]);
  // With learning rate 0 it is the loss of one step over the same records.
  json summary = json::parse(readFile(dir / "s.json"));
  Reference reference(dir);
  Tensors data = toyData(5, 9);
  memcpy(reference.ids.data(), data["ids"].bytes.data(),
         data["ids"].bytes.size());
  memcpy(reference.labels.data(), data["labels"].bytes.data(),
         data["labels"].bytes.size());
  memcpy(reference.pixels.data(), data["pixels"].bytes.data(),
         data["pixels"].bytes.size());
  double loss = 0, count = 0;
  for (int record = 0; record < 5; ++record) {
    loss += reference.microBatch(record, 1);
    count += static_cast<double>(reference.count(record));
  }
  EXPECT_NEAR(summary["eval_loss"].get<double>(), loss / count, 1e-5);
  // Evaluation only.
  RunResult result =
      runToy(dir, {"--weights=.", "--steps=0", "--eval-data", "e.safetensors"});
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("evaluation after step 0: loss "));
}

TEST_F(Train, ReportsAreWritten) {
  run({"--steps=4", "--summary=s.json", "--profile=p.json", "--trace=t.json"});
  json summary = json::parse(readFile(dir / "s.json"));
  EXPECT_EQ(summary["steps"], 4);
  EXPECT_GT(summary["samples_per_second"].get<double>(), 0);
  EXPECT_GT(summary["step_seconds"].get<double>(), 0);
  EXPECT_EQ(summary["bubble"], 0.0);
  ASSERT_EQ(summary["ranks"].size(), 1u);
  EXPECT_EQ(summary["ranks"][0]["planned_bytes"],
            mgq_program_table.ranks[0].arena_bytes);
  EXPECT_GT(summary["ranks"][0]["peak_bytes"].get<int64_t>(), 0);
  EXPECT_EQ(summary["ranks"][0]["bytes_sent"]["activation"], 0);
  json profile = json::parse(readFile(dir / "p.json"));
  EXPECT_EQ(profile["ranks"][0]["layers"][0]["name"], "classifier");
  EXPECT_GT(profile["ranks"][0]["layers"][0]["forward_seconds"].get<double>(),
            0);
  json trace = json::parse(readFile(dir / "t.json"));
  std::map<std::string, int> events;
  for (const json &event : trace["traceEvents"])
    if (event["ph"] == "X")
      ++events[event["cat"]];
  EXPECT_EQ(events["forward"], 8);
  EXPECT_EQ(events["backward"], 8);
  EXPECT_EQ(events["optimizer"], 4);
}

TEST_F(Train, AStepAllocatesNothing) {
  RunResult result = run({"--steps=40", "--log-file=log.jsonl",
                          "--max-grad-norm=history", "--trace=t.json"},
                         {"TOY_ALLOCATIONS=1"});
  EXPECT_EQ(log().size(), 40u);
  EXPECT_THAT(result.error, testing::EndsWith("allocations 0\n"));
}

TEST_F(Train, ThreadsChangeNoBit) {
  for (std::string threads : {"1", "2", "3"})
    run({"--steps=9", "--threads=" + threads, "--output-dir=out" + threads,
         "--log-file=log" + threads, "--learning-rate=0.1"});
  for (std::string threads : {"2", "3"}) {
    for (std::string file : {"model", "optimizer"}) {
      std::string name = "/checkpoint-9/" + file + ".safetensors";
      EXPECT_EQ(readFile(dir / ("out" + threads) + name),
                readFile(dir / "out1" + name));
    }
    EXPECT_EQ(log("log" + threads)[8]["loss"], log("log1")[8]["loss"]);
  }
}

TEST_F(Train, SeedAndShuffleChangeTheOrder) {
  auto losses = [&](const char *option) {
    run({"--steps=6", "--learning-rate=0", "--log-file=log.jsonl", option});
    std::vector<double> values;
    for (const json &line : log())
      values.push_back(line["loss"]);
    return values;
  };
  std::vector<double> off = losses("--shuffle=off");
  EXPECT_EQ(off[0], off[3]); // The same order in every epoch.
  EXPECT_NE(losses("--seed=42"), losses("--seed=43"));
  EXPECT_EQ(losses("--seed=42"), losses("--shuffle=on"));
}
