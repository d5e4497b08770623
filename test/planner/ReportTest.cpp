//===- ReportTest.cpp - Plans for readers and programs --------------------===//

#include "passes/Planner/Report.h"
#include "passes/Planner/PlanText.h"
#include "test/planner/MiniGPT4Qwen.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace mgq::planner;
using testing::HasSubstr;

namespace {

struct ReportTest : testing::Test {
  ModelCosts model;
  Cluster cluster = MiniGPT4Qwen::cluster(4);
  Plan plan;

  void SetUp() override {
    MiniGPT4Qwen config{256, 1, true};
    config.bytes = true;
    model = config.model();
    for (int d = 0; d < 4; ++d) {
      cluster.devices[d].name = "node0/gpu" + std::to_string(d);
      cluster.devices[d].memoryBytes = int64_t(48) << 30;
    }
    PlanRequest request;
    request.stages = request.ranks = 4;
    request.microBatches = 8;
    llvm::Expected<Plan> made = makePlan(model, cluster, request);
    ASSERT_TRUE(bool(made)) << llvm::toString(made.takeError());
    plan = std::move(*made);
    addAlternatives(plan, model, cluster, request);
  }
};

// The keys that programs rely on.
TEST_F(ReportTest, JsonHasFixedKeys) {
  llvm::json::Value value = planJson(plan, model, cluster);
  const llvm::json::Object &root = *value.getAsObject();
  EXPECT_EQ(root.getString("schedule"), scheduleName(plan.schedule));
  EXPECT_EQ(root.getInteger("stages"), 4);
  EXPECT_EQ(root.getInteger("replicas"), 1);
  EXPECT_EQ(root.getInteger("micro_batches"), 8);
  EXPECT_EQ(root.getNumber("step_seconds"), plan.stepSeconds);
  EXPECT_EQ(root.getNumber("bubble"), plan.simulation.bubble);
  EXPECT_EQ(root.getArray("cuts")->size(), plan.chunks.size() - 1);

  const llvm::json::Array &layers = *root.getArray("layers");
  ASSERT_EQ(layers.size(), model.layers.size());
  const llvm::json::Object &layer = *layers[80].getAsObject();
  for (const char *key : {"name", "stage", "parameters", "trainable_parameters",
                          "forward_flops", "backward_flops", "recomputed"})
    EXPECT_TRUE(layer.get(key)) << key;
  EXPECT_EQ(layer.getString("name"), model.layers[80].name);

  const llvm::json::Array &ranks = *root.getArray("ranks");
  ASSERT_EQ(ranks.size(), 4u);
  const llvm::json::Object &rank = *ranks[1].getAsObject();
  for (const char *key : {"stage", "device", "memory_bytes", "forward_seconds",
                          "backward_seconds", "bytes_sent"})
    EXPECT_TRUE(rank.get(key)) << key;
  int64_t sum = 0;
  for (const auto &part : *rank.getObject("memory_bytes"))
    if (part.first != "total")
      sum += *part.second.getAsInteger();
  EXPECT_EQ(rank.getObject("memory_bytes")->getInteger("total"), sum);

  const llvm::json::Object &others = *root.getObject("alternatives");
  for (const char *name : {"uniform", "parameters", "flops", "data_parallel"}) {
    ASSERT_TRUE(others.getObject(name)) << name;
    EXPECT_TRUE(others.getObject(name)->getNumber("step_seconds")) << name;
  }
}

TEST_F(ReportTest, TextShowsLayersRanksAndAlternatives) {
  std::string text;
  llvm::raw_string_ostream os(text);
  printPlan(os, plan, model, cluster);
  for (const char *part :
       {"plan: ", "4 stages, 1 replica, ", "8 micro-batches", "layers (",
        "vit.0.attention", "head", "data", "none", "node0/gpu3", " of 48.0 GiB",
        "data_parallel", "note: "})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST_F(ReportTest, TimelineIsWellFormed) {
  std::string svg;
  llvm::raw_string_ostream os(svg);
  writeTimeline(os, plan, model);
  EXPECT_EQ(svg.substr(0, 5), "<svg ");
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  size_t tasks = 0, titles = 0;
  for (const RankTimes &rank : plan.simulation.ranks)
    tasks += rank.timeline.size();
  for (size_t at = 0; (at = svg.find("<title>", at)) != std::string::npos; ++at)
    ++titles;
  EXPECT_EQ(titles, tasks);
  EXPECT_THAT(svg, HasSubstr("stage 3"));
  EXPECT_EQ(svg.find("http://", svg.find('>')), std::string::npos);
}

TEST(PlanText, Numbers) {
  EXPECT_EQ(byteText(512), "512 B");
  EXPECT_EQ(byteText(3 << 19), "1.50 MiB");
  EXPECT_EQ(secondText(0.0123), "12.3 ms");
  EXPECT_EQ(secondText(93.5), "93.5 s");
  EXPECT_EQ(countText(13.5e6), "13.5 M");
  EXPECT_EQ(percent(0.123), "12.3 %");
}

} // namespace
