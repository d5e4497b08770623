//===- Schedule.h - Orders of a step, and their simulation ------*- C++ -*-===//
//
// A schedule is data: for each rank the order of its tasks. Generators make it
// from the costs of chunks; the simulator says how long it takes. Nothing here
// knows IR or models.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_PLANNER_SCHEDULE_H
#define MGQ_PASSES_PLANNER_SCHEDULE_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <vector>

namespace mgq::planner {

enum class ScheduleKind { GPipe, OneFOneB, Interleaved, ZeroBubble };

/// "gpipe", "one_f_one_b", "interleaved", "zero_bubble".
llvm::StringRef scheduleName(ScheduleKind kind);

/// Consecutive layers that run together. Costs are of one micro-batch, in
/// seconds and bytes.
struct ChunkCosts {
  /// Ranks that can run it: micro-batch i runs on ranks[i % size]. More than
  /// one only where nothing of it trains and nothing upstream does: a frozen
  /// prefix that is spread over ranks.
  std::vector<int> ranks;
  double forward = 0;
  double backward = 0; ///< Data gradients, and weight gradients not split off.
  double weight = 0;   ///< Weight gradients that are split off.
  /// Hops to the next chunk after forward, and to the one before after
  /// backward; 0 where both chunks of a hop are on one rank.
  double send = 0;
  double sendBack = 0;
  /// Kept from forward to backward; then, of that, until weight.
  int64_t residualBytes = 0;
  int64_t weightResidualBytes = 0;
  /// There is something to do. A chunk without backward ends at forward.
  bool hasBackward = false;
  bool hasWeight = false;
  /// Backward hands a gradient to the chunk before.
  bool sendsGradient = false;
};

struct ScheduleProblem {
  int ranks = 1;
  int microBatches = 1;
  std::vector<ChunkCosts> chunks; ///< In the order of the model.
  /// Residual bytes a rank may hold, by rank; empty: no limit.
  std::vector<int64_t> memoryLimit;
  /// A rank goes on with the next step as soon as it is through with this one,
  /// so that steps fit into each other like parallelograms: what counts is
  /// Simulation::span, not the makespan. Needs an optimizer that no rank waits
  /// for (arXiv 2401.10241, section 4).
  bool overlapsSteps = false;

  /// The rank that runs micro-batch `microBatch` of a chunk.
  int rankOf(int chunk, int microBatch) const {
    const std::vector<int> &all = chunks[chunk].ranks;
    return all[microBatch % all.size()];
  }
};

enum class TaskKind { Forward, Backward, Weight };

struct Task {
  TaskKind kind = TaskKind::Forward;
  int chunk = 0;
  int microBatch = 0;

  bool operator==(const Task &other) const {
    return kind == other.kind && chunk == other.chunk &&
           microBatch == other.microBatch;
  }
};

/// Tasks of each rank, in order.
using Orders = std::vector<std::vector<Task>>;

/// Where the gradient of each chunk comes from: the nearest later chunk that
/// sends one; -1 where the chunk starts the backward pass.
std::vector<int> gradientSources(const ScheduleProblem &problem);

/// Makes the orders of a step. In each chunk the micro-batches go through
/// forward, backward and weight in ascending order (gradients are summed in
/// that order), also where a rank runs only some of them. Error if the memory
/// limit admits none, naming the rank and the bytes it needs.
llvm::Expected<Orders> makeSchedule(ScheduleKind kind,
                                    const ScheduleProblem &problem);

struct TimedTask {
  Task task;
  double begin = 0, end = 0; ///< Seconds.
};

struct RankTimes {
  double busy = 0;                 ///< Seconds of tasks.
  int64_t peakResidualBytes = 0;   ///< Over the step.
  std::vector<int> inFlight;       ///< Most micro-batches at once, by chunk.
  std::vector<TimedTask> timeline; ///< In order.
};

struct Simulation {
  double makespan = 0; ///< Seconds from the first task to the end of the last.
  double span = 0;     ///< The same of one rank, the largest of all ranks.
  double bubble = 0;   ///< 1 - sum of busy / (ranks * makespan).
  std::vector<RankTimes> ranks;
};

/// Runs each rank's tasks in order, as early as their inputs are there. Error
/// if ranks wait for each other in a circle, naming a task.
llvm::Expected<Simulation> simulate(const ScheduleProblem &problem,
                                    const Orders &orders);

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_SCHEDULE_H
