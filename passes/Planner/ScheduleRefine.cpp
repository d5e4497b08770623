//===- ScheduleRefine.cpp - Swaps on the critical path --------------------===//
//
// The greedy scheduler sees only what has started. With the whole step at hand,
// tasks that hold up the critical path can change places with the task behind
// them. Bounded by counts of simulated tasks.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/ListScheduler.h"

#include <algorithm>

using namespace mgq::planner;

/// Simulated tasks that one refinement may cost.
static constexpr long kTaskBudget = 400000;
static constexpr double kNoise = 1e-9;

static double timeOf(const Simulation &simulation,
                     const ScheduleProblem &problem) {
  return problem.overlapsSteps ? simulation.span : simulation.makespan;
}

static bool fits(const Simulation &simulation, const ScheduleProblem &problem) {
  for (size_t rank = 0; rank < problem.memoryLimit.size(); ++rank)
    if (simulation.ranks[rank].peakResidualBytes > problem.memoryLimit[rank])
      return false;
  return true;
}

namespace {
/// A task by its place.
struct Place {
  int rank = 0, index = 0;
};

/// Looks for places on the critical path where the task before holds up one
/// that was ready.
class CriticalPath {
public:
  CriticalPath(const ScheduleProblem &problem, const Orders &orders,
               const std::vector<int> &sources)
      : problem(problem), sources(sources), places(3 * problem.chunks.size()) {
    for (std::vector<Place> &row : places)
      row.resize(problem.microBatches);
    for (int rank = 0; rank < problem.ranks; ++rank)
      for (int k = 0; k < int(orders[rank].size()); ++k)
        place(orders[rank][k]) = {rank, k};
  }
  Place &place(const Task &task) {
    return places[int(task.kind) * problem.chunks.size() + task.chunk]
                 [task.microBatch];
  }

  /// Places whose task may change with the one before it, last first.
  std::vector<Place> holdUps(const Simulation &simulation) {
    std::vector<Place> result;
    Place at = end(simulation);
    while (true) {
      const auto &timeline = simulation.ranks[at.rank].timeline;
      const TimedTask &timed = timeline[at.index];
      Place input;
      double arrival = 0;
      bool hasInput = findInput(timed.task, simulation, input, arrival);
      bool waits =
          at.index > 0 && timeline[at.index - 1].end > arrival + kNoise;
      if (waits) {
        if (mayFollow(timeline[at.index - 1].task, timed.task))
          result.push_back(at);
        --at.index;
      } else if (hasInput) {
        at = input;
      } else if (at.index > 0) {
        --at.index;
      } else {
        return result;
      }
    }
  }

private:
  Place end(const Simulation &simulation) const {
    Place best;
    double most = -1;
    for (int rank = 0; rank < problem.ranks; ++rank) {
      const auto &timeline = simulation.ranks[rank].timeline;
      if (timeline.empty())
        continue;
      double time = timeline.back().end -
                    (problem.overlapsSteps ? timeline.front().begin : 0);
      if (time > most) {
        most = time;
        best = {rank, int(timeline.size()) - 1};
      }
    }
    return best;
  }

  /// The input that arrives last; false if a task needs none.
  bool findInput(const Task &task, const Simulation &simulation, Place &input,
                 double &arrival) {
    auto consider = [&](const Task &producer, double hop) {
      Place from = place(producer);
      double end = simulation.ranks[from.rank].timeline[from.index].end;
      end += from.rank == place(task).rank ? 0 : hop;
      if (end >= arrival) {
        arrival = end;
        input = from;
      }
    };
    int c = task.chunk, i = task.microBatch;
    switch (task.kind) {
    case TaskKind::Forward:
      if (c == 0)
        return false;
      consider({TaskKind::Forward, c - 1, i}, problem.chunks[c - 1].send);
      return true;
    case TaskKind::Backward:
      consider({TaskKind::Forward, c, i}, 0);
      if (sources[c] >= 0)
        consider({TaskKind::Backward, sources[c], i},
                 problem.chunks[sources[c]].sendBack);
      return true;
    case TaskKind::Weight:
      consider({TaskKind::Backward, c, i}, 0);
      return true;
    }
    llvm_unreachable("unknown kind of task");
  }

  /// `first` need not run before `second`.
  static bool mayFollow(const Task &first, const Task &second) {
    if (first.chunk != second.chunk)
      return true;
    return first.kind != second.kind && first.microBatch != second.microBatch;
  }

  const ScheduleProblem &problem;
  const std::vector<int> &sources;
  std::vector<std::vector<Place>> places;
};
} // namespace

void mgq::planner::refineOrders(const ScheduleProblem &problem,
                                Orders &orders) {
  long tasks = 0;
  for (const std::vector<Task> &order : orders)
    tasks += order.size();
  long trials = tasks ? kTaskBudget / tasks : 0;
  llvm::Expected<Simulation> simulated = simulate(problem, orders);
  if (!simulated)
    return llvm::consumeError(simulated.takeError());
  Simulation current = std::move(*simulated);
  std::vector<int> sources = gradientSources(problem);

  bool moved = true;
  while (moved && trials > 0) {
    moved = false;
    CriticalPath path(problem, orders, sources);
    for (Place at : path.holdUps(current)) {
      if (--trials < 0)
        return;
      std::vector<Task> &order = orders[at.rank];
      std::swap(order[at.index - 1], order[at.index]);
      llvm::Expected<Simulation> next = simulate(problem, orders);
      bool better = false;
      if (next)
        better =
            fits(*next, problem) &&
            timeOf(*next, problem) < timeOf(current, problem) * (1 - kNoise);
      else
        llvm::consumeError(next.takeError());
      if (better) {
        current = std::move(*next);
        moved = true;
        break;
      }
      std::swap(order[at.index - 1], order[at.index]);
    }
  }
}
