//===- ScheduleTest.cpp - Schedules and their simulation ------------------===//

#include "passes/Planner/Schedule.h"
#include "llvm/ADT/STLExtras.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace mgq::planner;

namespace {

/// A pipeline of equal stages, `v` chunks on each rank, round robin.
ScheduleProblem pipeline(int p, int m, double f, double b, double w,
                         double hop = 0, int v = 1) {
  ScheduleProblem problem;
  problem.ranks = p;
  problem.microBatches = m;
  for (int c = 0; c < p * v; ++c) {
    ChunkCosts chunk;
    chunk.ranks = {c % p};
    chunk.forward = f;
    chunk.backward = b;
    chunk.weight = w;
    chunk.send = chunk.sendBack = hop;
    chunk.residualBytes = 1;
    chunk.hasBackward = true;
    chunk.hasWeight = w > 0;
    chunk.sendsGradient = c > 0;
    problem.chunks.push_back(chunk);
  }
  return problem;
}

Simulation run(ScheduleKind kind, const ScheduleProblem &problem) {
  llvm::Expected<Orders> orders = makeSchedule(kind, problem);
  if (!orders) {
    ADD_FAILURE() << llvm::toString(orders.takeError());
    return {};
  }
  llvm::Expected<Simulation> simulation = simulate(problem, *orders);
  if (!simulation) {
    ADD_FAILURE() << llvm::toString(simulation.takeError());
    return {};
  }
  for (size_t r = 0; r < problem.memoryLimit.size(); ++r)
    EXPECT_LE(simulation->ranks[r].peakResidualBytes, problem.memoryLimit[r]);
  return *simulation;
}

/// Table A of the published figures (arXiv 2401.10241), milliseconds.
struct ZeroBubbleRow {
  int p, m;
  double f, b, w, c;
  double oneFOneB, zb1p, zb2p;
  int hidden, heads;
};

const ZeroBubbleRow kZeroBubble[] = {
    {8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.0433, 2304, 24},
    {8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242, 0.0039, 2304, 24},
    {8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0026, 2304, 24},
    {8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0029, 4096, 32},
    {8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045, 0.0022, 4096, 32},
    {8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0010, 4096, 32},
    {16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.0066, 5120, 40},
    {16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.1088, 0.0054, 5120, 40},
    {16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0576, 0.0028, 5120, 40},
    {32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421, 0.0038, 6144, 48},
    {32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1106, 0.0029, 6144, 48},
    {32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0594, 0.0018, 6144, 48},
};

double bubbleOf(double time, const ZeroBubbleRow &row) {
  return (time - row.m * (row.f + row.b + row.w)) / time;
}

/// Bubble under a memory limit of `multiple` * p times one forward. As in the
/// paper, a rank goes on with the next step when it is through with this one.
double zeroBubble(const ZeroBubbleRow &row, int multiple) {
  ScheduleProblem problem =
      pipeline(row.p, row.m, row.f, row.b, row.w, row.c);
  int64_t forward = 34 * row.hidden + 5 * row.heads * 1024;
  for (ChunkCosts &chunk : problem.chunks) {
    chunk.residualBytes = forward;
    chunk.weightResidualBytes = 32 * row.hidden;
  }
  problem.memoryLimit.assign(row.p, forward * row.p * multiple);
  problem.overlapsSteps = true;
  return bubbleOf(run(ScheduleKind::ZeroBubble, problem).span, row);
}

// The 1F1B order gives the published bubbles to all four digits.
TEST(Schedule, OneFOneBGivesPublishedBubbles) {
  for (const ZeroBubbleRow &row : kZeroBubble) {
    ScheduleProblem problem =
        pipeline(row.p, row.m, row.f, row.b + row.w, 0, row.c);
    Simulation simulation = run(ScheduleKind::OneFOneB, problem);
    EXPECT_NEAR(bubbleOf(simulation.makespan, row), row.oneFOneB, 0.00005)
        << row.p << " ranks, " << row.m << " micro-batches";
  }
}

TEST(Schedule, ZeroBubbleReachesPublishedBubbles1p) {
  for (const ZeroBubbleRow &row : kZeroBubble)
    EXPECT_LE(zeroBubble(row, 1), row.zb1p + 0.0005)
        << row.p << " ranks, " << row.m << " micro-batches";
}

TEST(Schedule, ZeroBubbleReachesPublishedBubbles2p) {
  for (const ZeroBubbleRow &row : kZeroBubble)
    EXPECT_LE(zeroBubble(row, 2), row.zb2p + 0.0005)
        << row.p << " ranks, " << row.m << " micro-batches";
}

// Equal work everywhere: bubbles have closed forms.
TEST(Schedule, BubblesHaveClosedForms) {
  for (int p : {1, 2, 4, 8})
    for (int m : {8, 16, 32}) {
      double expected = double(p - 1) / (m + p - 1);
      ScheduleProblem problem = pipeline(p, m, 1, 2, 0);
      EXPECT_NEAR(run(ScheduleKind::GPipe, problem).bubble, expected, 1e-9);
      EXPECT_NEAR(run(ScheduleKind::OneFOneB, problem).bubble, expected, 1e-9);
      for (int v : {2, 3, 4})
        EXPECT_LE(run(ScheduleKind::Interleaved, pipeline(p, m, 1, 2, 0, 0, v))
                      .bubble,
                  double(p - 1) / (v * m + p - 1) + 1e-9)
            << p << " ranks, " << m << " micro-batches, " << v << " chunks";
    }
}

} // namespace
