//===- Schedule.cpp - The program of each rank ----------------------------===//
//
// In: pipe.plan. Out: one pipe.rank per stage with the compute ops of a step:
//
//   F0 F1 B0 F2 B1 ... combine optimizer
//
// A slot holds what a micro-batch keeps in a chunk. It is free again after the
// micro-batch's last op there; where that is forward (nothing to
// differentiate), when its readers on other ranks begin, so that a frozen
// prefix runs ahead without waiting for them.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/Schedule.h"
#include "passes/Pipe/Passes.h"

#include <limits>
#include <map>

namespace mgq::pipe {
#define GEN_PASS_DEF_SCHEDULEPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;
namespace planner = mgq::planner;

static planner::ScheduleProblem makeProblem(PlanOp plan) {
  planner::ScheduleProblem problem;
  problem.ranks = int(plan.getStages());
  problem.microBatches = int(plan.getMicroBatches());
  if (auto limit = plan.getMemoryLimit())
    problem.memoryLimit.assign(limit->begin(), limit->end());
  for (ChunkOp chunk : plan.getOps<ChunkOp>()) {
    planner::ChunkCosts costs;
    costs.ranks.assign(chunk.getRanks().begin(), chunk.getRanks().end());
    ArrayRef<double> seconds = chunk.getSeconds();
    costs.forward = seconds[0];
    costs.backward = seconds[1];
    costs.weight = seconds[2];
    costs.send = seconds[3];
    costs.sendBack = seconds[4];
    costs.residualBytes = chunk.getBytes()[0];
    costs.weightResidualBytes = chunk.getBytes()[1];
    costs.hasBackward = chunk.getBackward();
    costs.hasWeight = chunk.getWeight();
    costs.sendsGradient = chunk.getSendsGradient();
    problem.chunks.push_back(costs);
  }
  return problem;
}

static planner::ScheduleKind kindOf(PlanOp plan) {
  return static_cast<planner::ScheduleKind>(plan.getSchedule());
}

namespace {
/// Gives out a chunk's slots on one rank.
class Slots {
public:
  /// The lowest slot that is free at `begin`; it is taken until `release`.
  int64_t take(int64_t microBatch, double begin, double release) {
    size_t slot = 0;
    while (slot < until.size() && until[slot] > begin)
      ++slot;
    if (slot == until.size())
      until.push_back(0);
    until[slot] = release;
    slotOf[microBatch] = slot;
    return slot;
  }
  int64_t of(int64_t microBatch) { return slotOf[microBatch]; }
  void release(int64_t microBatch) { until[slotOf[microBatch]] = 0; }

private:
  std::vector<double> until;
  std::map<int64_t, int64_t> slotOf;
};
} // namespace

/// When each chunk begins forward of each micro-batch in the simulation.
static std::vector<std::vector<double>>
forwardBegins(const planner::ScheduleProblem &problem,
              const planner::Simulation &simulation) {
  std::vector<std::vector<double>> begins(
      problem.chunks.size(), std::vector<double>(problem.microBatches));
  for (const planner::RankTimes &rank : simulation.ranks)
    for (const planner::TimedTask &timed : rank.timeline)
      if (timed.task.kind == planner::TaskKind::Forward)
        begins[timed.task.chunk][timed.task.microBatch] = timed.begin;
  return begins;
}

namespace {
struct SchedulePass : mgq::pipe::impl::SchedulePassBase<SchedulePass> {
  using SchedulePassBase::SchedulePassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto plans = module.getOps<PlanOp>();
    if (plans.empty()) {
      module.emitError("has no pipe.plan to schedule");
      return signalPassFailure();
    }
    PlanOp plan = *plans.begin();
    planner::ScheduleProblem problem = makeProblem(plan);
    auto orders = planner::makeSchedule(kindOf(plan), problem);
    if (!orders) {
      plan.emitError() << llvm::toString(orders.takeError());
      return signalPassFailure();
    }
    auto simulation = planner::simulate(problem, *orders);
    if (!simulation) {
      plan.emitError() << llvm::toString(simulation.takeError());
      return signalPassFailure();
    }
    auto begins = forwardBegins(problem, *simulation);
    OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
    for (int64_t stage = 0; stage < problem.ranks; ++stage) {
      auto rank = RankOp::create(builder, module.getLoc(),
                                 "r" + std::to_string(stage), stage,
                                 /*memory=*/DenseI64ArrayAttr());
      OpBuilder body(builder.getContext());
      body.createBlock(&rank.getBody());
      writeProgram(body, plan, problem, simulation->ranks[stage], begins);
    }
  }

  /// Readers of a chunk's forward result: the next chunk, at the earliest.
  static double readersBegin(const planner::ScheduleProblem &problem,
                             const std::vector<std::vector<double>> &begins,
                             const planner::Task &task) {
    double latest = 0;
    for (size_t next = task.chunk + 1; next < problem.chunks.size(); ++next)
      latest = std::max(latest, begins[next][task.microBatch]);
    return latest;
  }

  static void writeProgram(OpBuilder &builder, PlanOp plan,
                           const planner::ScheduleProblem &problem,
                           const planner::RankTimes &times,
                           const std::vector<std::vector<double>> &begins) {
    Location loc = plan.getLoc();
    auto event = EventType::get(builder.getContext());
    std::vector<Slots> slots(problem.chunks.size());
    constexpr double kHeld = std::numeric_limits<double>::infinity();
    for (const planner::TimedTask &timed : times.timeline) {
      const planner::Task &task = timed.task;
      const planner::ChunkCosts &chunk = problem.chunks[task.chunk];
      Slots &own = slots[task.chunk];
      bool ends = false;
      switch (task.kind) {
      case planner::TaskKind::Forward: {
        bool comesBack = chunk.hasBackward || chunk.hasWeight;
        int64_t slot =
            own.take(task.microBatch, timed.begin,
                     comesBack ? kHeld : readersBegin(problem, begins, task));
        ForwardOp::create(builder, loc, event, task.chunk, task.microBatch,
                          slot, ValueRange());
        break;
      }
      case planner::TaskKind::Backward:
        BackwardOp::create(builder, loc, event, task.chunk, task.microBatch,
                           own.of(task.microBatch), ValueRange());
        ends = !chunk.hasWeight;
        break;
      case planner::TaskKind::Weight:
        WeightGradOp::create(builder, loc, event, task.chunk, task.microBatch,
                             own.of(task.microBatch), ValueRange());
        ends = true;
        break;
      }
      if (ends)
        own.release(task.microBatch);
    }
    CombineOp::create(builder, loc, event, ValueRange());
    if (plan.getReplicas() > 1)
      AllReduceOp::create(builder, loc, event, Attribute(), ValueRange());
    OptimizerOp::create(builder, loc, event, ValueRange());
  }
};
} // namespace
