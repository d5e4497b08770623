//===- Simulator.cpp - How long a schedule takes --------------------------===//
//
// Ranks run their tasks in order, each as early as its inputs are there. A
// rank computes one task at a time; messages travel beside it.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/Schedule.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Twine.h"

#include <algorithm>
#include <limits>

using namespace mgq::planner;
using llvm::ArrayRef;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

static constexpr double kUnknown = std::numeric_limits<double>::infinity();

static Error error(const Twine &text) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), text);
}

/// "forward of chunk 2, micro-batch 3".
static std::string describe(const Task &task) {
  static const char *const kinds[] = {"forward", "backward", "weight gradient"};
  return (Twine(kinds[int(task.kind)]) + " of chunk " + Twine(task.chunk) +
          ", micro-batch " + Twine(task.microBatch))
      .str();
}

std::vector<int> mgq::planner::gradientSources(const ScheduleProblem &problem) {
  std::vector<int> sources(problem.chunks.size(), -1);
  int source = -1;
  for (int c = int(problem.chunks.size()) - 1; c >= 0; --c) {
    sources[c] = source;
    if (problem.chunks[c].hasBackward && problem.chunks[c].sendsGradient)
      source = c;
  }
  return sources;
}

namespace {
/// A run of one schedule.
class Run {
public:
  Run(const ScheduleProblem &problem, const Orders &orders)
      : problem(problem), orders(orders), sources(gradientSources(problem)),
        chunkCount(problem.chunks.size()), ends(3 * chunkCount) {
    for (std::vector<double> &times : ends)
      times.assign(problem.microBatches, kUnknown);
  }

  /// Checks that every task has its place, on its rank, and once.
  Error check() const;
  Expected<Simulation> run();

private:
  std::vector<double> &endsOf(TaskKind kind, int chunk) {
    return ends[int(kind) * chunkCount + chunk];
  }
  /// Time at which the inputs of a task are there; infinite: not known yet.
  double ready(const Task &task);
  double duration(const Task &task) const;
  /// Books what a task takes and frees.
  void account(const Task &task, int rank, RankTimes &times);

  const ScheduleProblem &problem;
  const Orders &orders;
  std::vector<int> sources;
  int chunkCount;
  std::vector<std::vector<double>> ends;  ///< By kind and chunk, micro-batch.
  std::vector<int64_t> held;              ///< Bytes, by rank.
  std::vector<std::vector<int>> inFlight; ///< By rank and chunk.
};
} // namespace

Error Run::check() const {
  if (int(orders.size()) != problem.ranks)
    return error("schedule has " + Twine(orders.size()) + " ranks, expected " +
                 Twine(problem.ranks));
  std::vector<std::vector<char>> seen(3 * chunkCount);
  for (std::vector<char> &row : seen)
    row.assign(problem.microBatches, 0);
  for (int rank = 0; rank < problem.ranks; ++rank)
    for (const Task &task : orders[rank]) {
      if (task.chunk < 0 || task.chunk >= chunkCount || task.microBatch < 0 ||
          task.microBatch >= problem.microBatches)
        return error("rank " + Twine(rank) +
                     " runs an unknown task: " + describe(task));
      if (problem.rankOf(task.chunk, task.microBatch) != rank)
        return error("rank " + Twine(rank) + " runs the " + describe(task) +
                     ", which belongs to rank " +
                     Twine(problem.rankOf(task.chunk, task.microBatch)));
      char &mark =
          seen[int(task.kind) * chunkCount + task.chunk][task.microBatch];
      if (mark)
        return error("the " + describe(task) + " is scheduled twice");
      mark = 1;
    }
  for (int c = 0; c < chunkCount; ++c) {
    const ChunkCosts &chunk = problem.chunks[c];
    const bool wanted[] = {true, chunk.hasBackward,
                           chunk.hasBackward && chunk.hasWeight};
    for (int kind = 0; kind < 3; ++kind)
      for (int i = 0; i < problem.microBatches; ++i)
        if (bool(seen[kind * chunkCount + c][i]) != wanted[kind])
          return error("the " + describe({TaskKind(kind), c, i}) +
                       (wanted[kind] ? " is missing" : " has nothing to do"));
  }
  return Error::success();
}

double Run::ready(const Task &task) {
  int c = task.chunk, i = task.microBatch;
  switch (task.kind) {
  case TaskKind::Forward: {
    if (c == 0)
      return 0;
    double end = endsOf(TaskKind::Forward, c - 1)[i];
    bool local = problem.rankOf(c - 1, i) == problem.rankOf(c, i);
    return end + (local ? 0 : problem.chunks[c - 1].send);
  }
  case TaskKind::Backward: {
    double own = endsOf(TaskKind::Forward, c)[i];
    if (sources[c] < 0)
      return own;
    int source = sources[c];
    bool local = problem.rankOf(source, i) == problem.rankOf(c, i);
    return std::max(own, endsOf(TaskKind::Backward, source)[i] +
                             (local ? 0 : problem.chunks[source].sendBack));
  }
  case TaskKind::Weight:
    return endsOf(TaskKind::Backward, c)[i];
  }
  llvm_unreachable("unknown kind of task");
}

double Run::duration(const Task &task) const {
  const ChunkCosts &chunk = problem.chunks[task.chunk];
  return task.kind == TaskKind::Forward    ? chunk.forward
         : task.kind == TaskKind::Backward ? chunk.backward
                                           : chunk.weight;
}

void Run::account(const Task &task, int rank, RankTimes &times) {
  const ChunkCosts &chunk = problem.chunks[task.chunk];
  if (!chunk.hasBackward) {
    times.inFlight[task.chunk] = std::max(times.inFlight[task.chunk], 1);
    return;
  }
  int64_t kept = chunk.hasWeight ? chunk.weightResidualBytes : 0;
  int &flying = inFlight[rank][task.chunk];
  switch (task.kind) {
  case TaskKind::Forward:
    held[rank] += chunk.residualBytes;
    ++flying;
    break;
  case TaskKind::Backward:
    held[rank] -= chunk.residualBytes - kept;
    flying -= chunk.hasWeight ? 0 : 1;
    break;
  case TaskKind::Weight:
    held[rank] -= kept;
    --flying;
    break;
  }
  times.inFlight[task.chunk] = std::max(times.inFlight[task.chunk], flying);
  times.peakResidualBytes = std::max(times.peakResidualBytes, held[rank]);
}

Expected<Simulation> Run::run() {
  Simulation result;
  result.ranks.resize(problem.ranks);
  held.assign(problem.ranks, 0);
  inFlight.assign(problem.ranks, std::vector<int>(chunkCount, 0));
  std::vector<size_t> next(problem.ranks, 0);
  for (RankTimes &times : result.ranks)
    times.inFlight.assign(chunkCount, 0);

  // Each round lets every rank run on until an input is missing.
  bool moved = true;
  while (moved) {
    moved = false;
    for (int rank = 0; rank < problem.ranks; ++rank) {
      RankTimes &times = result.ranks[rank];
      while (next[rank] < orders[rank].size()) {
        const Task &task = orders[rank][next[rank]];
        double begin = ready(task);
        if (begin == kUnknown)
          break;
        if (!times.timeline.empty())
          begin = std::max(begin, times.timeline.back().end);
        double end = begin + duration(task);
        endsOf(task.kind, task.chunk)[task.microBatch] = end;
        times.timeline.push_back({task, begin, end});
        times.busy += end - begin;
        account(task, rank, times);
        ++next[rank];
        moved = true;
      }
    }
  }

  double first = kUnknown, last = 0, busy = 0;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const RankTimes &times = result.ranks[rank];
    if (next[rank] < orders[rank].size())
      return error("deadlock: rank " + Twine(rank) +
                   " waits for the inputs of the " +
                   describe(orders[rank][next[rank]]) +
                   ", which only tasks behind it can make");
    busy += times.busy;
    if (times.timeline.empty())
      continue;
    first = std::min(first, times.timeline.front().begin);
    last = std::max(last, times.timeline.back().end);
    result.span = std::max(result.span, times.timeline.back().end -
                                            times.timeline.front().begin);
  }
  result.makespan = first == kUnknown ? 0 : last - first;
  if (result.makespan > 0)
    result.bubble = 1 - busy / (problem.ranks * result.makespan);
  return result;
}

Expected<Simulation> mgq::planner::simulate(const ScheduleProblem &problem,
                                            const Orders &orders) {
  Run run(problem, orders);
  if (Error bad = run.check())
    return std::move(bad);
  return run.run();
}
