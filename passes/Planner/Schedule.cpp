//===- Schedule.cpp - Generators of schedules -----------------------------===//

#include "passes/Planner/Schedule.h"
#include "passes/Planner/ListScheduler.h"
#include "passes/Planner/PlanText.h"

#include "llvm/ADT/Twine.h"

#include <algorithm>

using namespace mgq::planner;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

llvm::StringRef mgq::planner::scheduleName(ScheduleKind kind) {
  switch (kind) {
  case ScheduleKind::GPipe:
    return "gpipe";
  case ScheduleKind::OneFOneB:
    return "one_f_one_b";
  case ScheduleKind::Interleaved:
    return "interleaved";
  case ScheduleKind::ZeroBubble:
    return "zero_bubble";
  }
  llvm_unreachable("unknown schedule");
}

static Error error(const Twine &text) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), text);
}

static Error tooLittleMemory(ScheduleKind kind, int rank, int64_t needed,
                             int64_t limit) {
  return error(Twine(scheduleName(kind)) + " needs " + byteText(needed) +
               " for activations on rank " + Twine(rank) + ", " +
               byteText(limit) + " are left there");
}

/// What the generators rely on.
static Error check(const ScheduleProblem &problem) {
  if (problem.ranks < 1 || problem.microBatches < 1 || problem.chunks.empty())
    return error("a schedule needs a rank, a micro-batch and a chunk");
  if (!problem.memoryLimit.empty() &&
      int(problem.memoryLimit.size()) != problem.ranks)
    return error("memory limits of " + Twine(problem.memoryLimit.size()) +
                 " ranks, expected " + Twine(problem.ranks));
  for (size_t c = 0; c < problem.chunks.size(); ++c) {
    const ChunkCosts &chunk = problem.chunks[c];
    if (chunk.ranks.empty())
      return error("chunk " + Twine(c) + " has no rank");
    if (chunk.ranks.size() > 1 && chunk.hasBackward)
      return error("chunk " + Twine(c) +
                   " has a backward pass and several ranks; gradients of a "
                   "parameter are summed on one");
    for (int rank : chunk.ranks)
      if (rank < 0 || rank >= problem.ranks)
        return error("chunk " + Twine(c) + " is on rank " + Twine(rank) +
                     " of " + Twine(problem.ranks));
  }
  return Error::success();
}

/// Appends the backward of a chunk, with its weight gradients.
static void appendBackward(std::vector<Task> &order, const ChunkCosts &chunk,
                           int c, int i) {
  if (!chunk.hasBackward)
    return;
  order.push_back({TaskKind::Backward, c, i});
  if (chunk.hasWeight)
    order.push_back({TaskKind::Weight, c, i});
}

/// All forwards, then all backwards (arXiv 1811.06965). Chunks of a rank run
/// one after the other.
static Orders makeGPipe(const ScheduleProblem &problem) {
  Orders orders(problem.ranks);
  int chunks = problem.chunks.size();
  for (int c = 0; c < chunks; ++c)
    for (int i = 0; i < problem.microBatches; ++i)
      orders[problem.rankOf(c, i)].push_back({TaskKind::Forward, c, i});
  for (int c = chunks - 1; c >= 0; --c)
    for (int i = 0; i < problem.microBatches; ++i)
      appendBackward(orders[problem.rankOf(c, i)], problem.chunks[c], c, i);
  return orders;
}

/// One chunk per rank, no chunk on several: what the plain 1F1B order needs.
static bool isPlainPipeline(const ScheduleProblem &problem) {
  std::vector<bool> used(problem.ranks, false);
  for (const ChunkCosts &chunk : problem.chunks) {
    if (chunk.ranks.size() != 1 || used[chunk.ranks.front()])
      return false;
    used[chunk.ranks.front()] = true;
  }
  return true;
}

/// Micro-batches that a chunk may have in flight, by memory.
static int64_t mostInFlight(const ScheduleProblem &problem, int c) {
  const ChunkCosts &chunk = problem.chunks[c];
  if (problem.memoryLimit.empty() || chunk.residualBytes <= 0)
    return problem.microBatches;
  return problem.memoryLimit[chunk.ranks.front()] / chunk.residualBytes;
}

/// As many forwards ahead as there are later stages, then one forward and one
/// backward by turns (PipeDream-flush, arXiv 2006.09503). Less ahead where
/// memory is short; never more than the stage before, which would wait for the
/// backward of what it does not send.
static Orders makeOneFOneB(const ScheduleProblem &problem) {
  Orders orders(problem.ranks);
  int chunks = problem.chunks.size(), m = problem.microBatches;
  int64_t before = m;
  for (int c = 0; c < chunks; ++c) {
    const ChunkCosts &chunk = problem.chunks[c];
    std::vector<Task> &order = orders[chunk.ranks.front()];
    int ahead = m;
    if (chunk.hasBackward) {
      before = std::min<int64_t>(
          {before, chunks - 1 - c, m, mostInFlight(problem, c) - 1});
      ahead = int(before);
    }
    for (int i = 0; i < ahead; ++i)
      order.push_back({TaskKind::Forward, c, i});
    for (int i = 0; i < m; ++i) {
      if (ahead + i < m)
        order.push_back({TaskKind::Forward, c, ahead + i});
      appendBackward(order, chunk, c, i);
    }
  }
  return orders;
}

/// The 1F1B order for chunks that share ranks, or a prefix that is spread:
/// forwards in flight are held as low as 1F1B holds them.
static bool makeGeneralOneFOneB(ListScheduler &scheduler, Orders &orders) {
  ListSettings settings;
  settings.forwardFirst = true;
  settings.capSlope = 1;
  settings.capBase = scheduler.chunksPerRank();
  settings.weightSlack = 1;
  return scheduler.run(settings, &orders);
}

Expected<Orders> mgq::planner::makeSchedule(ScheduleKind kind,
                                            const ScheduleProblem &problem) {
  if (Error bad = check(problem))
    return std::move(bad);
  ListScheduler scheduler(problem);
  for (int rank = 0; rank < int(problem.memoryLimit.size()); ++rank) {
    int64_t needed = scheduler.leastBytes(rank);
    if (kind == ScheduleKind::GPipe)
      needed *= problem.microBatches;
    if (needed > problem.memoryLimit[rank])
      return tooLittleMemory(kind, rank, needed, problem.memoryLimit[rank]);
  }

  if (kind == ScheduleKind::GPipe)
    return makeGPipe(problem);
  if (kind == ScheduleKind::OneFOneB && isPlainPipeline(problem))
    return makeOneFOneB(problem);
  Orders orders;
  if (kind == ScheduleKind::OneFOneB) {
    makeGeneralOneFOneB(scheduler, orders);
    return orders;
  }
  return searchOrders(problem, scheduler);
}
