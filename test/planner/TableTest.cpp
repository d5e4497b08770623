//===- TableTest.cpp - Plans of MiniGPT4Qwen-14B against known figures ----===//
//
// Makespans in TFLOP units: devices of one GFLOP/s, seconds / 1000. Language
// model frozen, only the projection trains.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/Partition.h"
#include "test/planner/MiniGPT4Qwen.h"
#include <gtest/gtest.h>

using namespace mgq::planner;

namespace {

Plan plan(const MiniGPT4Qwen &config, const PlanRequest &request) {
  llvm::Expected<Plan> result =
      makePlan(config.model(), MiniGPT4Qwen::cluster(request.stages), request);
  if (!result) {
    ADD_FAILURE() << llvm::toString(result.takeError());
    return {};
  }
  return std::move(*result);
}

PlanRequest pipelineOf(int stages, int microBatches) {
  PlanRequest request;
  request.stages = request.ranks = stages;
  request.microBatches = microBatches;
  return request;
}

struct Row {
  int length, images, p;
  double mpp, blind, aware;
};

const Row kRows[] = {
    {256, 1, 2, 65.5, 65.5, 65.5},      {256, 1, 4, 72.4, 72.8, 70.2},
    {256, 1, 8, 74.4, 74.7, 74.7},      {512, 1, 4, 145.5, 140.9, 136.3},
    {512, 1, 8, 149.4, 150.1, 150.1},   {1536, 32, 4, 578.7, 559.3, 498.3},
    {1536, 32, 8, 744.0, 567.1, 543.8},
};

/// The step under 1F1B with the cuts of the programme, not refined.
double programmed(const MiniGPT4Qwen &config, PlanRequest request) {
  ModelCosts model = config.model();
  Cluster cluster = MiniGPT4Qwen::cluster(request.stages);
  CostModel costs(model, cluster,
                  placements(model, cluster, request.stages, 1).front());
  Layout layout = Layout::roundRobin(request.stages, request.stages, false);
  layout.bounds = programmedBounds(costs, layout, {}, {});
  request.cuts.assign(layout.bounds.begin() + 1, layout.bounds.end() - 1);
  return plan(config, request).stepSeconds / 1000;
}

TEST(Table, OneFOneBColumns) {
  for (const Row &row : kRows) {
    MiniGPT4Qwen config{row.length, row.images};
    PlanRequest request = pipelineOf(row.p, 4 * row.p);
    request.schedule = ScheduleKind::OneFOneB;
    request.mayReplicatePrefix = false;
    EXPECT_NEAR(programmed(config, request), row.aware, 0.1)
        << row.length << " tokens, " << row.p << " ranks, frozen-aware";
    EXPECT_LE(plan(config, request).stepSeconds / 1000, row.aware + 0.1)
        << row.length << " tokens, " << row.p << " ranks, refined";
    request.partition = PartitionKind::Flops;
    EXPECT_NEAR(plan(config, request).stepSeconds / 1000, row.blind, 0.1)
        << row.length << " tokens, " << row.p << " ranks, blind";
    config.mppList = true;
    request.partition = PartitionKind::Uniform;
    EXPECT_NEAR(plan(config, request).stepSeconds / 1000, row.mpp, 0.1)
        << row.length << " tokens, " << row.p << " ranks, uniform";
  }
}

TEST(Table, RecomputationOfEveryBlock) {
  const struct {
    int p, m;
    double time;
  } rows[] = {{2, 8, 94.8},  {4, 16, 107.6}, {8, 32, 110.7}, {2, 128, 1362},
              {4, 128, 764}, {6, 128, 516},  {8, 128, 392}};
  for (auto [p, m, time] : rows) {
    MiniGPT4Qwen config;
    config.mppList = config.recomputesBlocks = true;
    PlanRequest request = pipelineOf(p, m);
    request.schedule = ScheduleKind::OneFOneB;
    request.partition = PartitionKind::Uniform;
    EXPECT_NEAR(plan(config, request).stepSeconds / 1000, time,
                m == 128 ? 1 : 0.1)
        << p << " ranks, " << m << " micro-batches";
  }
}

struct BestRow {
  int length, images, p, m;
  double most;
};

// Interleaved, uneven chunks, cuts inside blocks, the frozen prefix spread.
TEST(Table, OwnPlans) {
  const BestRow rows[] = {
      {256, 1, 4, 16, 61},   {256, 1, 8, 32, 64},    {512, 1, 4, 16, 119},
      {512, 1, 8, 32, 126},  {1536, 32, 4, 16, 430}, {1536, 32, 8, 32, 445},
      {256, 1, 2, 128, 928}, {256, 1, 4, 128, 474},  {256, 1, 6, 128, 331},
      {256, 1, 8, 128, 248},
  };
  for (const BestRow &row : rows) {
    MiniGPT4Qwen config{row.length, row.images, true};
    Plan best = plan(config, pipelineOf(row.p, row.m));
    EXPECT_LE(best.stepSeconds / 1000, row.most)
        << row.length << " tokens, " << row.p << " ranks, " << row.m
        << " micro-batches";
  }
}

} // namespace
