//===- Schedule.cpp - The program of each rank ----------------------------===//
//
// In: pipe.plan. Out: one pipe.rank per stage with the compute ops of a step:
//
//   F0 F1 B0 F2 B1 ... combine optimizer
//
// A slot holds what a micro-batch keeps in a chunk. It is free again after the
// micro-batch's last op there; where that is forward (nothing to
// differentiate), when its readers on other ranks begin, so that a frozen
// prefix runs ahead without waiting for them. Gradients have room of their own
// in a slot and leave it later, at the latest when the next micro-batch there
// runs backward.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/Schedule.h"
#include "passes/Pipe/StepGraph.h"

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
/// Times of the simulation. All waits that slots cause point back in it, so no
/// rank waits for ever.
class Times {
public:
  Times(const planner::ScheduleProblem &problem,
        const planner::Simulation &simulation) {
    for (auto *begins : {&forward, &backward})
      begins->assign(problem.chunks.size(),
                     std::vector<double>(problem.microBatches, kNever));
    for (const planner::RankTimes &rank : simulation.ranks)
      for (const planner::TimedTask &timed : rank.timeline) {
        auto &begins =
            timed.task.kind == planner::TaskKind::Forward ? forward : backward;
        double &begin = begins[timed.task.chunk][timed.task.microBatch];
        // Of backward and weight the first one reads gradients.
        begin = std::min(begin, timed.begin);
      }
  }

  static constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> forward, backward; // by chunk, micro-batch
};

/// Chunks that read what a chunk makes, forward and backward.
struct Readers {
  std::vector<SmallVector<int64_t>> forward, backward;
};

/// Gives out a chunk's slots on one rank.
class Slots {
public:
  /// The lowest slot that is free at `begin`, and that the gradients of the
  /// micro-batch before have left at `backward`.
  int64_t take(int64_t microBatch, double begin, double backward) {
    size_t slot = 0;
    while (slot < slots.size() &&
           (slots[slot].free > begin || slots[slot].left > backward))
      ++slot;
    if (slot == slots.size())
      slots.emplace_back();
    slots[slot].free = Times::kNever;
    slotOf[microBatch] = slot;
    return slot;
  }
  int64_t of(int64_t microBatch) { return slotOf[microBatch]; }
  /// The slot is free from `free` on, gradients leave it at `left`.
  void release(int64_t microBatch, double free, double left) {
    slots[slotOf[microBatch]] = {free, left};
  }

private:
  struct Slot {
    double free = 0, left = 0;
  };
  std::vector<Slot> slots;
  std::map<int64_t, int64_t> slotOf;
};
} // namespace

/// Who reads what, by the calls; without calls, neighbours do.
static FailureOr<Readers> findReaders(ModuleOp module, PlanOp plan,
                                      size_t chunks) {
  Readers readers{std::vector<SmallVector<int64_t>>(chunks),
                  std::vector<SmallVector<int64_t>>(chunks)};
  if (!module.lookupSymbol("train")) {
    for (size_t chunk = 1; chunk < chunks; ++chunk) {
      readers.forward[chunk - 1].push_back(chunk);
      readers.backward[chunk].push_back(chunk - 1);
    }
    return readers;
  }
  FailureOr<StepGraph> graph = StepGraph::create(module, plan);
  if (failed(graph))
    return failure();
  for (const Crossing &crossing : graph->crossings())
    if (crossing.kind == EdgeKind::Activation)
      readers.forward[crossing.from].push_back(crossing.to);
    else if (crossing.kind == EdgeKind::Gradient)
      readers.backward[crossing.from].push_back(crossing.to);
  return readers;
}

/// When the last of some chunks begins.
static double lastBegin(ArrayRef<int64_t> chunks,
                        const std::vector<std::vector<double>> &begins,
                        int64_t microBatch) {
  double latest = 0;
  for (int64_t chunk : chunks)
    latest = std::max(latest, begins[chunk][microBatch]);
  return latest;
}

namespace {
struct SchedulePass : mgq::pipe::impl::SchedulePassBase<SchedulePass> {
  using SchedulePassBase::SchedulePassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<PlanOp> found = findPlan(module);
    if (failed(found))
      return signalPassFailure();
    PlanOp plan = *found;
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
    FailureOr<Readers> readers =
        findReaders(module, plan, problem.chunks.size());
    if (failed(readers))
      return signalPassFailure();
    Times times(problem, *simulation);
    OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
    for (int64_t stage = 0; stage < problem.ranks; ++stage) {
      auto rank = RankOp::create(builder, module.getLoc(),
                                 "r" + std::to_string(stage), stage,
                                 /*memory=*/DenseI64ArrayAttr());
      OpBuilder body(builder.getContext());
      body.createBlock(&rank.getBody());
      writeProgram(body, plan, problem, simulation->ranks[stage], times,
                   *readers);
    }
  }

  static void writeProgram(OpBuilder &builder, PlanOp plan,
                           const planner::ScheduleProblem &problem,
                           const planner::RankTimes &rank, const Times &times,
                           const Readers &readers) {
    Location loc = plan.getLoc();
    auto event = EventType::get(builder.getContext());
    std::vector<Slots> slots(problem.chunks.size());
    for (const planner::TimedTask &timed : rank.timeline) {
      auto [kind, chunk, microBatch] = timed.task;
      const planner::ChunkCosts &costs = problem.chunks[chunk];
      Slots &own = slots[chunk];
      bool ends = false;
      switch (kind) {
      case planner::TaskKind::Forward:
        ForwardOp::create(builder, loc, event, chunk, microBatch,
                          own.take(microBatch, timed.begin,
                                   times.backward[chunk][microBatch]),
                          /*ahead=*/false, ValueRange());
        if (!costs.hasBackward && !costs.hasWeight)
          own.release(
              microBatch,
              lastBegin(readers.forward[chunk], times.forward, microBatch), 0);
        break;
      case planner::TaskKind::Backward:
        BackwardOp::create(builder, loc, event, chunk, microBatch,
                           own.of(microBatch), ValueRange());
        ends = !costs.hasWeight;
        break;
      case planner::TaskKind::Weight:
        WeightGradOp::create(builder, loc, event, chunk, microBatch,
                             own.of(microBatch), ValueRange());
        ends = true;
        break;
      }
      if (ends)
        own.release(
            microBatch, timed.end,
            lastBegin(readers.backward[chunk], times.backward, microBatch));
    }
    auto combine = CombineOp::create(builder, loc, event, ValueRange());
    SmallVector<Value> sums;
    if (plan.getReplicas() > 1)
      sums.push_back(AllReduceOp::create(builder, loc, event, IntegerAttr(),
                                         ArrayAttr(), Attribute(), ArenaAttr(),
                                         IntegerAttr(), CompressionAttr(),
                                         ValueRange(combine.getEvent()))
                         .getEvent());
    OptimizerOp::create(builder, loc, event, sums);
  }
};
} // namespace
