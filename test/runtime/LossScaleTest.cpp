//===- LossScaleTest.cpp - Loss scaling, skipped steps, clipping ----------===//

#include "runtime/src/common/LossScale.h"
#include "runtime/src/common/Options.h"
#include "test/runtime/TestFiles.h"
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace test;
using mgq::rt::LossScale;
using nlohmann::json;
using testing::HasSubstr;

static LossScale dynamicScale() {
  mgq::rt::Options options;
  options.lossScale = mgq::rt::LossScaleKind::Dynamic;
  return LossScale(options);
}

static void step(LossScale &scale, int steps, bool overflow = false) {
  for (int i = 0; i < steps; ++i)
    scale.stepped(overflow);
}

TEST(LossScale, HalvesOnceTheHysteresisIsUsedUp) {
  LossScale scale = dynamicScale();
  EXPECT_EQ(scale.scale(), 65536);
  step(scale, 1, true);
  EXPECT_EQ(scale.scale(), 65536); // The first is forgiven,
  step(scale, 5);                  // which clean steps do not change,
  step(scale, 1, true);
  EXPECT_EQ(scale.scale(), 32768); // but the second and later are not.
  step(scale, 1, true);
  EXPECT_EQ(scale.scale(), 16384);
}

TEST(LossScale, DoublesAfterCleanStepsInARow) {
  LossScale scale = dynamicScale();
  step(scale, 999);
  EXPECT_EQ(scale.scale(), 65536);
  step(scale, 1);
  EXPECT_EQ(scale.scale(), 131072);
  step(scale, 999);
  step(scale, 1, true);
  step(scale, 999);
  EXPECT_EQ(scale.scale(), 131072); // An overflow starts the row anew.
  step(scale, 1);
  EXPECT_EQ(scale.scale(), 262144);
  step(scale, 1, true); // Growth has given the hysteresis back.
  EXPECT_EQ(scale.scale(), 262144);
}

TEST(LossScale, StaysWithinItsLimits) {
  LossScale scale = dynamicScale();
  step(scale, 100, true);
  EXPECT_EQ(scale.scale(), 1e-5);
  step(scale, 100000);
  EXPECT_EQ(scale.scale(), 16777216);
}

TEST(LossScale, OnlyADynamicOneHasState) {
  mgq::rt::Options options;
  LossScale off(options);
  EXPECT_FALSE(off.isOn());
  EXPECT_EQ(off.scale(), 1);
  EXPECT_EQ(off.saved().scale, 0);
  options.lossScale = mgq::rt::LossScaleKind::Static;
  options.lossScaleValue = 1024;
  LossScale fixed(options);
  step(fixed, 3, true);
  fixed.restore({512, 1, 1});
  EXPECT_EQ(fixed.scale(), 1024);
  EXPECT_EQ(fixed.saved().scale, 0);
  LossScale scale = dynamicScale(), other = dynamicScale();
  step(scale, 3, true);
  step(scale, 7);
  other.restore(scale.saved());
  step(scale, 993);
  step(other, 993);
  EXPECT_EQ(other.scale(), scale.scale());
  other.restore({}); // A checkpoint of a run without one changes nothing.
  EXPECT_EQ(other.scale(), scale.scale());
}

namespace {
/// Training of the pipeline whose second step of each epoch is not finite
/// where it is poisoned.
struct Scaled : testing::Test {
  TempDir dir;
  const std::vector<std::string> one = {"TOY_STAGES=1"},
                                 three = {"TOY_STAGES=3", "TOY_SPLIT=1"},
                                 four = {"TOY_STAGES=2", "TOY_REPLICAS=2",
                                         "TOY_MICRO_BATCHES=2"};

  void SetUp() override {
    writePipeWeights(dir / "pipe.weights");
    writeFile(dir / "d.safetensors", tensorFile(pipeData(8, 5)));
  }

  /// The last record gets an infinite input: the loss stays finite, the first
  /// stage's gradients do not.
  void poison() {
    Tensors data = pipeData(8, 5);
    float infinite = INFINITY;
    std::string &bytes = data["x"].bytes;
    memcpy(&bytes[bytes.size() - sizeof infinite], &infinite, sizeof infinite);
    std::vector<int64_t> labels(16, 3);
    data["labels"] = tensor("I64", {8, 2}, labels);
    writeFile(dir / "d.safetensors", tensorFile(data));
  }

  RunResult run(const std::vector<std::string> &plan, const std::string &name,
                std::vector<std::string> more, int status = 0) {
    for (const std::string &text :
         {std::string("--data=d.safetensors"), std::string("--weights=."),
          std::string("--shuffle=off"), std::string("--threads=1"),
          "--log-file=" + name + ".log", "--output-dir=" + name,
          std::string("--learning-rate=0.02")})
      more.push_back(text);
    RunResult result = runToy(dir, more, plan);
    EXPECT_EQ(result.status, status) << result.output << result.error;
    return result;
  }

  std::vector<json> log(const std::string &name) {
    return readLog(dir / name + ".log");
  }

  void expectSameFiles(const std::string &a, const std::string &b) {
    for (const char *name :
         {"model.safetensors", "optimizer.safetensors", "trainer_state.json"})
      EXPECT_EQ(readFile(dir / a + "/" + name), readFile(dir / b + "/" + name))
          << a << " " << name;
  }
};
} // namespace

// Scaling by a power of two changes exponents only.
TEST_F(Scaled, APowerOfTwoIsBitwiseOff) {
  for (const auto &plan : {one, three, four}) {
    SCOPED_TRACE(testing::PrintToString(plan));
    run(plan, "off",
        {"--steps=9", "--max-grad-norm=0.7", "--dump-gradients=off.grad"});
    for (const char *scale : {"1024", "dynamic", "0.125"}) {
      run(plan, "on",
          {"--steps=9", "--max-grad-norm=0.7", "--dump-gradients=on.grad",
           std::string("--loss-scale=") + scale});
      std::vector<json> lines = log("on");
      for (json &line : lines) {
        EXPECT_GT(line["loss_scale"].get<double>(), 0);
        line.erase("loss_scale");
      }
      EXPECT_EQ(lines, log("off")) << scale;
      EXPECT_EQ(readFile(dir / "on.grad"), readFile(dir / "off.grad"));
      for (const char *file : {"model", "optimizer"})
        EXPECT_EQ(readFile(dir / "on/checkpoint-9/" + file + ".safetensors"),
                  readFile(dir / "off/checkpoint-9/" + file + ".safetensors"));
    }
  }
}

// Other factors round once more, and no more than that.
TEST_F(Scaled, OtherFactorsAgreeToRounding) {
  run(one, "off", {"--steps=3"});
  run(one, "on", {"--steps=3", "--loss-scale=1000.7"});
  for (int i = 0; i < 3; ++i)
    EXPECT_NEAR(log("on")[i]["grad_norm"].get<double>(),
                log("off")[i]["grad_norm"].get<double>(), 1e-5);
}

TEST_F(Scaled, AllRanksSkipWhatOverflows) {
  poison();
  for (const auto &plan : {one, three, four}) {
    SCOPED_TRACE(testing::PrintToString(plan));
    RunResult result = run(
        plan, "all", {"--steps=8", "--loss-scale=dynamic", "--summary=s.json"});
    std::vector<json> lines = log("all");
    ASSERT_EQ(lines.size(), 8u);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(lines[i].contains("skipped"), i % 2 == 1);
      EXPECT_EQ(lines[i]["grad_norm"].is_null(), i % 2 == 1);
      EXPECT_FALSE(lines[i]["loss"].is_null());
    }
    EXPECT_EQ(lines[1]["skipped"], "gradients");
    // The first overflow is forgiven.
    std::vector<double> scales;
    for (const json &line : lines)
      scales.push_back(line["loss_scale"]);
    EXPECT_THAT(scales, testing::ElementsAre(65536, 65536, 65536, 65536, 32768,
                                             32768, 16384, 16384));
    EXPECT_EQ(json::parse(readFile(dir / "s.json"))["nonfinite_steps"], 4);
    json state =
        json::parse(readFile(dir / "all/checkpoint-8/trainer_state.json"));
    EXPECT_EQ(state["updates"], 4);
    EXPECT_EQ(state["loss_scale"]["scale"], 8192);
    EXPECT_THAT(result.output, HasSubstr("  loss_scale 32768  skipped: "
                                         "gradients not finite\n"));
  }
}

TEST_F(Scaled, ResumesOnOtherStages) {
  poison();
  run(one, "whole", {"--steps=9", "--loss-scale=dynamic"});
  run(three, "parts", {"--steps=5", "--loss-scale=dynamic"});
  run({"TOY_STAGES=2"}, "parts",
      {"--steps=9", "--loss-scale=dynamic", "--resume-from-checkpoint=latest"});
  EXPECT_EQ(log("parts"), log("whole"));
  expectSameFiles("parts/checkpoint-9", "whole/checkpoint-9");
}

TEST_F(Scaled, ADamagedStateIsNamed) {
  run(one, "out", {"--steps=1", "--loss-scale=dynamic"});
  std::string path = dir / "out/checkpoint-1/trainer_state.json";
  json state = json::parse(readFile(path));
  state["loss_scale"]["hysteresis"] = 3;
  writeFile(path, state.dump());
  RunResult result = run(
      one, "out",
      {"--steps=2", "--loss-scale=dynamic", "--resume-from-checkpoint=latest"},
      1);
  EXPECT_THAT(result.error, HasSubstr("trainer_state.json' is damaged: "
                                      "loss_scale {"));
}

// Unless told otherwise: only a dynamic scale expects overflows.
TEST_F(Scaled, OnlyADynamicScaleSkipsByItself) {
  poison();
  for (std::string option : {"--loss-scale=1024", "--loss-scale=off"})
    EXPECT_THAT(run(one, "out", {"--steps=2", option}, 1).error,
                HasSubstr("is not finite in step 2"));
  run(one, "out", {"--steps=2", "--loss-scale=dynamic", "--on-nonfinite=stop"},
      1);
  run(one, "out", {"--steps=2", "--loss-scale=2", "--on-nonfinite=skip"});
  EXPECT_EQ(log("out")[1]["skipped"], "gradients");
}

// The label's probability rounds to zero where logits are far apart: an
// infinite loss, but gradients of at most 1.
TEST_F(Scaled, AnInfiniteLossIsAnOverflow) {
  writeToyWeights(dir / "toy.weights");
  Tensors data = toyData(4, 3);
  std::vector<float> pixels(4 * 2 * 12, 1000);
  std::string &bytes = data["pixels"].bytes;
  memcpy(&bytes[0], pixels.data(), bytes.size());
  data["labels"] = tensor<int64_t>("I64", {8}, {0, 1, 2, 3, 0, 1, 2, 3});
  writeFile(dir / "d.safetensors", tensorFile(data));
  auto train = [&](const char *scale, const char *policy, int status) {
    return runToy(dir,
                  {"--data=d.safetensors", "--weights=.", "--steps=2",
                   "--log-file=log", "--learning-rate=1e-9", scale, policy})
               .status == status;
  };
  EXPECT_TRUE(train("--loss-scale=dynamic", "--on-nonfinite=skip", 0));
  EXPECT_EQ(readLog(dir / "log")[1]["skipped"], "loss");
  EXPECT_TRUE(readLog(dir / "log")[1]["loss"].is_null());
  EXPECT_FALSE(readLog(dir / "log")[1]["grad_norm"].is_null());
  EXPECT_TRUE(train("--loss-scale=8", "--on-nonfinite=stop", 1));
  EXPECT_THAT(readFile(dir / "stderr.txt"),
              HasSubstr("error: the loss is not finite in step 1; "
                        "--on-nonfinite=skip skips such steps"));
  // Without a scale it is only a number.
  EXPECT_TRUE(train("--loss-scale=off", "--on-nonfinite=stop", 0));
}

TEST_F(Scaled, WrongValuesAreRefused) {
  for (const char *text : {"0", "-2", "inf", "nan", "1e31", "x", ""})
    EXPECT_THAT(
        run(one, "out", {"--steps=1", std::string("--loss-scale=") + text}, 2)
            .error,
        HasSubstr(*text ? "--loss-scale is '" : "--loss-scale"));
  for (const char *text : {"1e-30", "1e30"})
    run(one, "out",
        {"--steps=1", "--on-nonfinite=skip",
         std::string("--loss-scale=") + text});
}

// Norms are of all ranks' parameters, once each; history goes on in a resumed
// run of other stages. Steps that are skipped are no part of it.
TEST_F(Scaled, ClippingKnowsNoRanks) {
  poison();
  std::vector<std::string> first = {"--on-nonfinite=skip"}, second = first,
                           whole = first;
  first.emplace_back("--steps=203");
  second.emplace_back("--steps=230");
  second.emplace_back("--resume-from-checkpoint=latest");
  whole.emplace_back("--steps=230");
  for (std::string clip : {"history:0.9", "tanh", "0.3"}) {
    SCOPED_TRACE(clip);
    for (auto *options : {&first, &second, &whole})
      options->push_back("--max-grad-norm=" + clip);
    run(one, "whole", whole);
    run(three, "parts" + clip, first);
    run({"TOY_STAGES=2"}, "parts" + clip, second);
    EXPECT_EQ(log("parts" + clip), log("whole"));
    expectSameFiles("parts" + clip + "/checkpoint-230", "whole/checkpoint-230");
    run(four, "replicas", whole);
    run({"TOY_STAGES=1", "TOY_REPLICAS=2", "TOY_MICRO_BATCHES=2"}, "flat",
        whole);
    EXPECT_EQ(log("replicas"), log("flat"));
    expectSameFiles("replicas/checkpoint-230", "flat/checkpoint-230");
    for (int i = 0; i < 20; i += 2)
      EXPECT_NEAR(log("replicas")[i]["grad_norm"].get<double>(),
                  log("whole")[i]["grad_norm"].get<double>(), 1e-4);
    for (auto *options : {&first, &second, &whole})
      options->pop_back();
  }
}
