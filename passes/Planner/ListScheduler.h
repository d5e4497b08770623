//===- ListScheduler.h - Greedy orders under memory limits ------*- C++ -*-===//
//
// The engine behind the interleaved and zero_bubble schedules: ranks run by
// simulated time, and one that is free takes the best of its tasks that are
// ready. What "best" means is a handful of settings, over which a search goes.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_PLANNER_LISTSCHEDULER_H
#define MGQ_PASSES_PLANNER_LISTSCHEDULER_H

#include "passes/Planner/Schedule.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace mgq::planner {

/// Priorities of a run.
struct ListSettings {
  /// Most forwards in flight (forwards less backwards) on each rank:
  /// `capBase` + `capSlope` * ranks behind it. Soft: raised where ranks would
  /// wait for each other. 0 and 0: none.
  int capBase = 0, capSlope = 0;
  /// Instead of `capSlope`: forwards that fit between the first forward of a
  /// rank and its first backward, times this.
  double capLag = 0;
  /// A ready forward goes before a ready backward.
  bool forwardFirst = false;
  /// Among forwards of a group the deepest chunk goes first, not the first.
  bool deepFirst = false;
  /// So many micro-batches pass through the chunks of a rank together.
  int group = 1;
  /// The spread prefix of a micro-batch goes first when at most so many others
  /// wait before the next chunk; otherwise it fills gaps.
  int prefixAhead = 1;
  /// A task starts although a backward is to arrive while it runs if that
  /// delays the backward by at most this share of the task.
  double forwardSlack = 1;
  double warmUpSlack = 1; ///< The same before the first backward of a rank.
  double weightSlack = 0;
  /// A rank that would become the one with most idle time takes a weight
  /// gradient whatever it delays (arXiv 2401.10241, section 3.1).
  bool evenIdle = false;
};

/// Makes one order after the other for one problem.
class ListScheduler {
public:
  explicit ListScheduler(const ScheduleProblem &problem);

  /// Runs the problem; false if memory limits admit no order. `orders` may be
  /// null where only the time is asked for. A run that is sure to take longer
  /// than `cutoff` ends early, with an infinite time.
  bool run(const ListSettings &settings, Orders *orders,
           double cutoff = std::numeric_limits<double>::infinity());
  double makespan() const { return last; }
  double span() const { return widest; }

  /// Least bytes that a rank needs: one micro-batch in all its chunks.
  int64_t leastBytes(int rank) const;
  /// Ranks by position: how many ranks begin behind it.
  int ranksBehind(int rank) const { return behind[rank]; }
  int chunksPerRank() const { return mostChunks; }

private:
  /// A chunk on one of its ranks.
  struct Slot {
    int chunk;
    bool spread;
    int next[3];        ///< Next of `microBatches`, by kind.
    int64_t laterBytes; ///< Residuals of later chunks on the rank.
    std::vector<int> microBatches;
  };
  struct Choice {
    Slot *slot = nullptr;
    int64_t key = 0;
  };

  void reset(const ListSettings &settings);
  /// Has a rank look for a task at a time, if it does not before.
  void wake(double time, int rank) {
    wakeAt[rank] = std::min(wakeAt[rank], std::max(time, freeAt[rank]));
  }
  /// Lets a free rank take a task, or sleep.
  void dispatch(int rank, double now);
  void start(int rank, Slot &slot, TaskKind kind, double now);
  bool hasRoom(int rank, const Slot &slot) const;
  int64_t forwardKey(const Slot &slot, int microBatch) const;
  int64_t backwardKey(const Slot &slot, int microBatch) const;
  double &forwardArrival(int chunk, int i) {
    return arrivals[chunk * microBatches + i];
  }
  double &backwardArrival(int chunk, int i) {
    return arrivals[(chunkCount + chunk) * microBatches + i];
  }

  const ScheduleProblem &problem;
  const int chunkCount, microBatches;
  std::vector<std::vector<int>> consumers; ///< Of the gradient, by chunk.
  std::vector<int> sources;
  std::vector<std::vector<Slot>> slots; ///< By rank.
  std::vector<int> behind;
  /// Forwards that fit while the first micro-batch is behind a rank, by rank.
  std::vector<double> lag;
  std::vector<double> work; ///< Seconds of all tasks, by rank.
  int mostChunks = 1;
  int afterPrefix = 0; ///< First chunk that is not spread.
  long taskCount = 0;

  // State of a run.
  ListSettings settings;
  Orders *orders = nullptr;
  std::vector<double> arrivals;
  std::vector<double> freeAt, firstBegin;
  std::vector<double> idle; ///< Since the first task.
  double mostIdle = 0;
  std::vector<int64_t> held;
  std::vector<int> flying, cap, backwards;
  std::vector<double> wakeAt;   ///< When a rank looks for a task, by rank.
  std::vector<double> workLeft; ///< Seconds of tasks not started, by rank.
  double cutoff = 0;
  bool hopeless = false; ///< Above the cutoff.
  int prefixTaken = 0;   ///< Forwards started of `afterPrefix`.
  long started = 0;
  double last = 0, widest = 0;
};

/// The best settings that a bounded search finds, by makespan (or span).
/// False where memory limits admit no order. `known`: `best` holds settings to
/// start from as well.
bool searchSettings(ListScheduler &scheduler, const ScheduleProblem &problem,
                    ListSettings &best, bool known = false);

/// The orders of those settings.
llvm::Expected<Orders> searchOrders(const ScheduleProblem &problem,
                                    ListScheduler &scheduler);

/// Swaps tasks on the critical path while that shortens the step.
void refineOrders(const ScheduleProblem &problem, Orders &orders);

/// The value that searches minimise.
inline double objective(const ListScheduler &scheduler,
                        const ScheduleProblem &problem) {
  return problem.overlapsSteps ? scheduler.span() : scheduler.makespan();
}

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_LISTSCHEDULER_H
