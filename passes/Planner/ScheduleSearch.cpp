//===- ScheduleSearch.cpp - Settings of the list scheduler ----------------===//
//
// No priority rule is best for all costs. The search walks over the settings
// one at a time, keeps what the simulation finds better, and stops when a round
// brings nothing. Its length is bounded by counts, so its result depends on
// the problem only.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/ListScheduler.h"

#include <algorithm>

using namespace mgq::planner;

static constexpr int kRounds = 3;
/// Gains below this share of the time are noise of rounding.
static constexpr double kNoise = 1e-9;

namespace {
/// A walk from one start.
struct Walk {
  ListScheduler &scheduler;
  const ScheduleProblem &problem;
  ListSettings best;
  double bestTime = -1;

  void tryOne(const ListSettings &settings) {
    double cutoff = bestTime < 0 ? std::numeric_limits<double>::infinity()
                                 : bestTime * (1 + kNoise);
    if (!scheduler.run(settings, nullptr, cutoff))
      return;
    double time = objective(scheduler, problem);
    if (bestTime < 0 || time < bestTime * (1 - kNoise)) {
      bestTime = time;
      best = settings;
    }
  }

  /// Tries each value of one setting.
  template <typename T>
  void vary(T ListSettings::*field, std::initializer_list<T> values) {
    ListSettings base = best;
    for (T value : values) {
      if (base.*field == value)
        continue;
      ListSettings other = base;
      other.*field = value;
      tryOne(other);
    }
  }

  void varyCaps(std::initializer_list<std::pair<int, int>> caps) {
    ListSettings base = best;
    for (auto [capBase, capSlope] : caps) {
      ListSettings other = base;
      other.capBase = capBase;
      other.capSlope = capSlope;
      other.capLag = 0;
      tryOne(other);
    }
  }
};
} // namespace

bool mgq::planner::searchSettings(ListScheduler &scheduler,
                                  const ScheduleProblem &problem,
                                  ListSettings &best, bool known) {
  int p = problem.ranks, v = scheduler.chunksPerRank();
  bool splits = false, spread = false;
  for (const ChunkCosts &chunk : problem.chunks) {
    splits |= chunk.hasBackward && chunk.hasWeight;
    spread |= chunk.ranks.size() > 1;
  }

  Walk walk{scheduler, problem, {}, -1};
  ListSettings start;
  // Megatron's order (arXiv 2104.04473): groups of p micro-batches, and so
  // many forwards ahead that the first backward finds no gap.
  start.group = p;
  start.forwardFirst = true;
  start.capBase = (v - 1) * p + 1;
  start.capSlope = 2;
  walk.tryOne(start);
  start.forwardFirst = false;
  walk.tryOne(start);
  start.capBase = start.capSlope = 0;
  walk.tryOne(start);
  if (known)
    walk.tryOne(best);
  if (walk.bestTime < 0)
    return false;

  for (int round = 0; round < kRounds; ++round) {
    double before = walk.bestTime;
    walk.varyCaps({{0, 0},
                   {v, 1},
                   {v, 2},
                   {(v - 1) * p + 1, 1},
                   {(v - 1) * p + 1, 2},
                   {(v - 1) * p + p / 2 + 1, 1},
                   {(v - 1) * p + p / 2 + 1, 2},
                   {v * p + 1, 1},
                   {v * p, 0},
                   {v * p, 2},
                   {2 * p * v, 0}});
    for (int base : {1, 2}) {
      ListSettings other = walk.best;
      other.capBase = base;
      other.capSlope = 0;
      other.capLag = 1;
      walk.tryOne(other);
    }
    walk.vary(&ListSettings::group, {1, std::max(1, p / 2), p, 2 * p});
    walk.vary(&ListSettings::forwardFirst, {false, true});
    walk.vary(&ListSettings::deepFirst, {false, true});
    walk.vary(&ListSettings::forwardSlack, {0.0, 0.25, 0.5, 0.75, 1.0});
    walk.vary(&ListSettings::warmUpSlack, {0.0, 0.25, 0.5, 0.75, 1.0});
    if (splits) {
      walk.vary(&ListSettings::evenIdle, {false, true});
      walk.vary(&ListSettings::weightSlack, {0.0, 0.25, 0.5, 0.75, 1.0});
    }
    if (spread)
      walk.vary(&ListSettings::prefixAhead, {1, 2, p / 2, p, 2 * p});
    if (walk.bestTime >= before * (1 - kNoise))
      break;
  }
  best = walk.best;
  return true;
}

llvm::Expected<Orders>
mgq::planner::searchOrders(const ScheduleProblem &problem,
                           ListScheduler &scheduler) {
  ListSettings best;
  Orders orders;
  if (!searchSettings(scheduler, problem, best) ||
      !scheduler.run(best, &orders))
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "memory limits admit no order");
  refineOrders(problem, orders);
  return orders;
}
