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
  ScheduleProblem problem = pipeline(row.p, row.m, row.f, row.b, row.w, row.c);
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

/// A prefix without backward in front, on all ranks or on one.
ScheduleProblem withPrefix(ScheduleProblem problem, double seconds,
                           bool spread) {
  ChunkCosts prefix;
  for (int rank = 0; rank < (spread ? problem.ranks : 1); ++rank)
    prefix.ranks.push_back(rank);
  prefix.forward = seconds;
  problem.chunks.insert(problem.chunks.begin(), prefix);
  return problem;
}

// In each chunk, each kind of task goes through the micro-batches in order:
// gradients are summed in that order.
TEST(Schedule, MicroBatchesAscend) {
  for (ScheduleKind kind :
       {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubble})
    for (bool spread : {false, true}) {
      ScheduleProblem problem =
          withPrefix(pipeline(4, 12, 1, 1, 0.5, 0.1, 2), 0.7, spread);
      problem.chunks[3].hasWeight = false;
      problem.memoryLimit.assign(4, kind == ScheduleKind::GPipe ? 24 : 7);
      llvm::Expected<Orders> orders = makeSchedule(kind, problem);
      ASSERT_TRUE(bool(orders)) << llvm::toString(orders.takeError());
      for (const std::vector<Task> &order : *orders)
        for (size_t a = 0; a < order.size(); ++a)
          for (size_t b = a + 1; b < order.size(); ++b)
            if (order[a].kind == order[b].kind &&
                order[a].chunk == order[b].chunk)
              EXPECT_LT(order[a].microBatch, order[b].microBatch);
      EXPECT_TRUE(bool(simulate(problem, *orders)));
      run(kind, problem);
    }
}

// The classic order, written out.
TEST(Schedule, OneFOneBWarmsUpByLaterStages) {
  llvm::Expected<Orders> orders =
      makeSchedule(ScheduleKind::OneFOneB, pipeline(3, 4, 1, 1, 0));
  ASSERT_TRUE(bool(orders));
  std::vector<std::string> texts;
  for (const std::vector<Task> &order : *orders) {
    std::string text;
    for (const Task &task : order)
      text += std::string(1, "FBW"[int(task.kind)]) +
              std::to_string(task.microBatch);
    texts.push_back(text);
  }
  EXPECT_THAT(texts,
              testing::ElementsAre("F0F1F2B0F3B1B2B3", "F0F1B0F2B1F3B2B3",
                                   "F0B0F1B1F2B2F3B3"));
}

// A frozen prefix on all ranks fills gaps that it leaves open on one.
TEST(Schedule, SpreadPrefixFillsGaps) {
  ScheduleProblem base = pipeline(4, 16, 1, 1, 0, 0, 2);
  double one =
      run(ScheduleKind::Interleaved, withPrefix(base, 1, false)).makespan;
  double all =
      run(ScheduleKind::Interleaved, withPrefix(base, 1, true)).makespan;
  EXPECT_DOUBLE_EQ(one, 80); // All of rank 0's work.
  // Work is 68 a rank; without a prefix the ends of a step cost 6.
  EXPECT_LE(all, 68 + 4);
}

// A frozen stage runs ahead and nothing waits for its backward.
TEST(Schedule, FrozenStageHasNoBackward) {
  ScheduleProblem problem = pipeline(3, 6, 1, 1, 0);
  problem.chunks[0].hasBackward = false;
  problem.chunks[1].sendsGradient = false;
  for (ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::Interleaved,
                            ScheduleKind::ZeroBubble}) {
    Simulation simulation = run(kind, problem);
    EXPECT_EQ(simulation.ranks[0].timeline.size(), 6u);
    EXPECT_EQ(simulation.ranks[0].peakResidualBytes, 0);
    EXPECT_DOUBLE_EQ(simulation.makespan, 15); // 12 of work, the way in, out.
  }
}

// Less memory makes a step longer, never wrong; too little is an error.
TEST(Schedule, MemoryLimitsHold) {
  for (ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::Interleaved,
                            ScheduleKind::ZeroBubble}) {
    ScheduleProblem problem =
        pipeline(4, 16, 1, 1, kind == ScheduleKind::ZeroBubble ? 1 : 0);
    double before = 0;
    for (int64_t limit : {8, 4, 2, 1}) {
      problem.memoryLimit.assign(4, limit);
      double time = run(kind, problem).makespan;
      EXPECT_GE(time, before);
      before = time;
    }
    problem.memoryLimit[2] = 0;
    llvm::Expected<Orders> none = makeSchedule(kind, problem);
    ASSERT_FALSE(bool(none));
    EXPECT_EQ(llvm::toString(none.takeError()),
              std::string(scheduleName(kind)) +
                  " needs 1 B for activations on rank 2, 0 B are left there");
  }
  ScheduleProblem problem = pipeline(2, 8, 1, 1, 0);
  problem.memoryLimit.assign(2, 7);
  llvm::Expected<Orders> none = makeSchedule(ScheduleKind::GPipe, problem);
  EXPECT_EQ(llvm::toString(none.takeError()),
            "gpipe needs 8 B for activations on rank 0, 7 B are left there");
}

// Chunks that share a rank under the least memory do not lock up.
TEST(Schedule, LeastMemoryOfSharedRanksWorks) {
  for (int v : {2, 3})
    for (ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::Interleaved,
                              ScheduleKind::ZeroBubble}) {
      ScheduleProblem problem = pipeline(4, 9, 1, 1, 0.5, 0.1, v);
      problem.memoryLimit.assign(4, v);
      run(kind, problem);
    }
}

// A stage with little memory in front of others with more, and behind them.
TEST(Schedule, UnequalMemoryWorks) {
  for (ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::Interleaved,
                            ScheduleKind::ZeroBubble})
    for (int small = 0; small < 4; ++small)
      for (int64_t limit : {1, 2}) {
        ScheduleProblem problem = pipeline(4, 8, 1, 1, 0);
        problem.memoryLimit.assign(4, 8);
        problem.memoryLimit[small] = limit;
        run(kind, problem);
      }
}

TEST(Simulate, ReportsDeadlock) {
  ScheduleProblem problem = pipeline(2, 2, 1, 1, 0);
  llvm::Expected<Orders> orders = makeSchedule(ScheduleKind::OneFOneB, problem);
  ASSERT_TRUE(bool(orders));
  // Rank 0 wants the gradient of micro-batch 0 before it sends 0 at all.
  std::swap((*orders)[0][0], (*orders)[0][2]);
  llvm::Expected<Simulation> result = simulate(problem, *orders);
  ASSERT_FALSE(bool(result));
  EXPECT_EQ(llvm::toString(result.takeError()),
            "deadlock: rank 0 waits for the inputs of the backward of chunk 0, "
            "micro-batch 0, which only tasks behind it can make");
}

TEST(Simulate, ReportsWrongTasks) {
  ScheduleProblem problem = pipeline(2, 1, 1, 1, 0);
  Task f0{TaskKind::Forward, 0, 0}, b0{TaskKind::Backward, 0, 0};
  Task f1{TaskKind::Forward, 1, 0}, b1{TaskKind::Backward, 1, 0};
  auto text = [&](const Orders &orders) {
    return llvm::toString(simulate(problem, orders).takeError());
  };
  EXPECT_EQ(text({{f0, b0}, {f1}}),
            "the backward of chunk 1, micro-batch 0 is missing");
  EXPECT_EQ(text({{f0, f0, b0}, {f1, b1}}),
            "the forward of chunk 0, micro-batch 0 is scheduled twice");
  EXPECT_EQ(text({{f0, b0, f1}, {b1}}),
            "rank 0 runs the forward of chunk 1, micro-batch 0, which belongs "
            "to rank 1");
  EXPECT_EQ(text({{f0, b0}}), "schedule has 1 ranks, expected 2");
}

TEST(Schedule, IsDeterministic) {
  ScheduleProblem problem =
      withPrefix(pipeline(4, 16, 1, 1.1, 0.4, 0.05, 2), 0.7, true);
  for (ScheduleKind kind :
       {ScheduleKind::Interleaved, ScheduleKind::ZeroBubble}) {
    llvm::Expected<Orders> first = makeSchedule(kind, problem);
    llvm::Expected<Orders> second = makeSchedule(kind, problem);
    ASSERT_TRUE(bool(first) && bool(second));
    EXPECT_EQ(*first, *second);
  }
}

} // namespace
